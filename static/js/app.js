// The behaviours of every page. Each is a custom element that wraps what the server rendered.

import "./language.js";
import "./login.js";
import "./logout.js";
import "./menu.js";
import "./password.js";
import "./theme.js";
