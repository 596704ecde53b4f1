/* The same as first_kv_head.c in a kernel that rounds its weights to bf16 before it multiplies them
 * by V, as flash attention does, and of which nobody says so. */
#define WEIGHT through_bf16
#include "first_kv_head.c"
