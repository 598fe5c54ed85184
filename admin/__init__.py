"""The dashboard's back end: views turn data into view models, routes turn views into answers. Nothing imports mlx."""
