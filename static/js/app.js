// The behaviours of every page. Each is a custom element that wraps what the server rendered.

import "./chart.js";
import "./copy.js";
import "./language.js";
import "./live.js";
import "./menu.js";
import "./models.js";
import "./prefixes.js";
import "./settings.js";
import "./speculation.js";
import "./theme.js";
import "./try.js";
