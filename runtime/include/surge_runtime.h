/* surge_runtime: run a packed binary network from C, without Python or torch.
 *
 *     char error[256];
 *     surge_model *model = surge_load_file("model.surge", error, sizeof error);
 *     if (!model) { puts(error); return 1; }
 *     surge_run(model, input, 1, output, error, sizeof error);
 *     surge_free(model);
 *
 * Inputs and outputs are fp32 in the order torch has them: [batch, channels, height, width],
 * [batch, tokens, features] or [batch, features]; of a BERT [batch, 3, tokens]: word numbers, which
 * of two texts, and 1 where there is a word. A model may be run by many threads at the same time; the
 * functions that change it (surge_set_threads, surge_set_tier, surge_free) must not overlap with a
 * run. No function throws, exits or crashes on a damaged file: it returns an error text instead.
 */
#ifndef SURGE_RUNTIME_H
#define SURGE_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define SURGE_API __declspec(dllexport)
#else
#define SURGE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a function of this header changes its meaning. */
#define SURGE_ABI_VERSION 1

typedef struct surge_model surge_model;

/* SURGE_ABI_VERSION of the library, to be compared with that of the header. */
SURGE_API int surge_abi_version(void);

/* Names of the kernel tiers this machine can run, best first, separated by commas. */
SURGE_API const char *surge_tiers(void);

/* Load a packed file, or its content (which is copied as needed). NULL on failure, with the reason
 * in `error`, cut to `error_size` bytes; `error` may be NULL. The environment variable
 * SURGE_RUNTIME_TIER chooses the kernels; without it the best tier is taken. */
SURGE_API surge_model *surge_load_file(const char *path, char *error, size_t error_size);
SURGE_API surge_model *surge_load_memory(const void *data, size_t size, char *error,
                                         size_t error_size);
SURGE_API void surge_free(surge_model *model);

/* Sizes of one sample. Return the number of dimensions and write at most `capacity` of them. */
SURGE_API int surge_input_shape(const surge_model *model, int64_t *dims, int capacity);
SURGE_API int surge_output_shape(const surge_model *model, int64_t *dims, int capacity);

/* Metadata of the file: "method", "classes", "preprocessing", "accuracy", "graph", ...; lists are
 * JSON. NULL if there is no such entry. The text lives as long as the model. */
SURGE_API const char *surge_metadata(const surge_model *model, const char *key);

/* Bytes of working memory that one run needs. */
SURGE_API size_t surge_workspace_bytes(const surge_model *model);

/* Run `batch` samples. Returns 0, or -1 with the reason in `error`. */
SURGE_API int surge_run(surge_model *model, const float *input, int64_t batch, float *output,
                        char *error, size_t error_size);

/* The steps of a run, in order: the input's conversion, then one per operator. Names and kinds
 * ("binary_conv2d", ...) live as long as the model; NULL if there is no such step. */
SURGE_API int surge_step_count(const surge_model *model);
SURGE_API const char *surge_step_name(const surge_model *model, int step);
SURGE_API const char *surge_step_kind(const surge_model *model, int step);

/* Run like surge_run, and add the microseconds of every step to microseconds[0 .. step_count - 1].
 * Samples run one after the other. Returns 0, or -1 with the reason in `error`. */
SURGE_API int surge_profile(surge_model *model, const float *input, int64_t batch, float *output,
                            double *microseconds, char *error, size_t error_size);

/* How many threads one run may use; 1 at first. Returns 0, or -1 with the reason in `error`. */
SURGE_API int surge_set_threads(surge_model *model, int threads, char *error, size_t error_size);

/* Choose the kernels by name, or "auto". Returns 0, or -1 with the reason in `error`. */
SURGE_API int surge_set_tier(surge_model *model, const char *tier, char *error, size_t error_size);
SURGE_API const char *surge_tier(const surge_model *model);

#ifdef __cplusplus
}
#endif

#endif
