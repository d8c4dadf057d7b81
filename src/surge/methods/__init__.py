"""One file per paper; every module here is imported when methods are looked up."""
