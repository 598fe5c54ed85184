"""The official JavaScript clients against a real server. `npm ci` in this folder installs them."""
