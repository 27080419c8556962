"""One file a table or figure: functions that compute records, and functions that draw them."""
