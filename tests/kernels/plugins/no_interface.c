// A library of something else.
int something_else(void) { return 1; }
