"""Eyes: how the families of vision-language models prepare, place and compute images."""
