"""The formats of our pages (``templates/parts/time.html``), as Django's ``FORMAT_MODULE_PATH`` names them."""

from typing import Final

DATE_FORMAT: Final = "Y-m-d"
DATETIME_FORMAT: Final = "Y-m-d H:i T"
SHORT_DATE_FORMAT: Final = DATE_FORMAT
SHORT_DATETIME_FORMAT: Final = DATETIME_FORMAT
TIME_FORMAT: Final = "H:i"
