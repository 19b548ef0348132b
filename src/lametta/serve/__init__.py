"""The correction service: streams of predictions corrected behind a standard protocol."""
