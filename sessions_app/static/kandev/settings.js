// Settings: times in the reader's zone.

import { showLocalTimes } from "./times.js";

showLocalTimes(document);
