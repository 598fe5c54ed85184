// All behaviours. Each is a custom element around HTML of the server.

import "./benchmark.js";
import "./chart.js";
import "./connect.js";
import "./copy.js";
import "./download.js";
import "./keys.js";
import "./language.js";
import "./lazy.js";
import "./live-part.js";
import "./log.js";
import "./menu.js";
import "./model-actions.js";
import "./model-list.js";
import "./model-map.js";
import "./more.js";
import "./nav.js";
import "./pause.js";
import "./prefix-cache.js";
import "./profile.js";
import "./request-list.js";
import "./requests.js";
import "./settings-form.js";
import "./speculation-card.js";
import "./theme.js";
import "./trial.js";
import "./verify.js";
