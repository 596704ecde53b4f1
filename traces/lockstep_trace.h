/* The C interface by which an engine writes a trace that `lockstep judge` takes: open, then for
 * each forward pass its rows and the tensors that it made, then close. Plain C; C++ and CUDA may
 * include it. The library, liblockstep_trace.so, needs neither LibTorch nor CUDA; this file needs
 * <dlpack/dlpack.h> (Debian: libdlpack-dev). traces/examples/tiny_qwen3.c is a whole engine that
 * does so. traces/README.md says what a trace is.
 *
 * Functions that return an int return 0, or -1 when something was wrong: lockstep_trace_error says
 * what, in one sentence. After an error the trace takes nothing more; it is to be closed. The
 * engine goes on as it is: nothing here ends the process, or changes what it is shown.
 *
 * One trace is for one thread at a time. Everything that is handed over is borrowed for the call.
 */
#pragma once

#include <dlpack/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when anything in this file does. */
enum { LOCKSTEP_TRACE_ABI = 1 };
/* Returns the LOCKSTEP_TRACE_ABI that the library was built with. */
int32_t lockstep_trace_abi(void);

typedef struct LockstepTrace LockstepTrace;

typedef struct LockstepTraceOptions {
  const char* path;  /* a new trace: X.h5, or the folder X.trace */
  const char* model; /* the folder of the checkpoint, whose config.json says what the model has */
  const char* dtype; /* of weights and activations: "bf16", "fp16" or "fp32" */
  /* Where ops round inside: an engine of `lockstep judge --schema` ("hf", "vllm", ...), or a JSON
   * object, point -> contract (traces/README.md); NULL: not known, the judge tries. */
  const char* schema;
  const char* engine; /* its name and version, for people; NULL: not said */
} LockstepTraceOptions;

/* Returns NULL when something was wrong: lockstep_trace_error(NULL) says what. */
LockstepTrace* lockstep_trace_open(const LockstepTraceOptions* options);

/* One token of a pass. */
typedef struct LockstepRow {
  int32_t request;  /* a number of the engine's for the sequence, 0 or more */
  int32_t position; /* of the token in its request, from 0 */
  int32_t token;    /* the id that is fed */
} LockstepRow;

/* Begins a forward pass, and ends the one before. Rows of a request lie together, by position. */
int lockstep_trace_begin_pass(LockstepTrace* trace, const LockstepRow* rows, int64_t count);

/* A tensor that the pass made, as its op stored it: `lockstep points` lists the points and their
 * axes. Its rows are those of the pass, or, in the same order, the last of each request. Heads may
 * be one axis with their dims ([token, head dim] as a projection makes it). Layer -1: of no layer.
 * dtype: that of the run or float32; of `token` and `mlp.experts` int32 or int64.
 *
 * On the CPU it may have strides and is read before the function returns. On a CUDA device it is
 * dense, copied on `stream`, and waited for; stream: a cudaStream_t, NULL for the default one. The
 * thread's current context is that of the tensor. */
int lockstep_trace_show(LockstepTrace* trace, const char* point, int32_t layer,
                        const DLTensor* tensor, void* stream);

/* The same of a tensor of other rows: indices into the rows of the pass, ascending. Of `logits` and
 * `token` they are the rows that got logits. */
int lockstep_trace_show_rows(LockstepTrace* trace, const char* point, int32_t layer,
                             const DLTensor* tensor, const int32_t* rows, int64_t count,
                             void* stream);

/* The logits of the pass, [rows, vocab]; as lockstep_trace_show of the point "logits". */
int lockstep_trace_logits(LockstepTrace* trace, const DLTensor* logits, void* stream);

/* Ends the trace, and frees it. Without this the trace is one of a run that did not end. NULL: 0.
 */
int lockstep_trace_close(LockstepTrace* trace);

/* One sentence about the first error; "" when there was none. NULL: about the last
 * lockstep_trace_open or lockstep_trace_close of this thread that failed. The library owns it,
 * until the trace is closed. */
const char* lockstep_trace_error(const LockstepTrace* trace);

#ifdef __cplusplus
}
#endif
