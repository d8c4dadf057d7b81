/* Run a packed network without Python.
 *
 *     cc classify.c -I../include -LBUILD -Wl,-rpath,BUILD -lsurge_runtime -o classify
 *
 * where BUILD is the folder of the library (CMake builds all this with -DSURGE_EXAMPLES=ON); then
 *
 *     ./classify model.surge image.ppm      names of the three most likely classes
 *     ./classify model.surge --raw x.f32    all outputs; the file holds fp32 in torch's order
 *
 * The image is a binary PPM or PGM (P6, P5) of exactly the network's size; mean and standard
 * deviation come from the packed file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "surge_runtime.h"

enum { MOST_CHANNELS = 16, SHOWN = 3 };

static int fail(const char *what) {
    fprintf(stderr, "error: %s\n", what);
    return 2;
}

static size_t product(const int64_t *dims, int rank) {
    size_t total = 1;
    for (int i = 0; i < rank; ++i) total *= (size_t)dims[i];
    return total;
}

/* The numbers behind "key": in a flat JSON object; returns how many there are. */
static int numbers(const char *json, const char *key, double *out, int capacity) {
    char quoted[32];
    int count = 0;
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = json ? strstr(json, quoted) : NULL;
    if (!at) return 0;
    at += strlen(quoted);
    if (*at == '[') ++at;
    while (count < capacity) {
        char *end;
        out[count] = strtod(at, &end);
        if (end == at) break;
        ++count;
        at = *end == ',' && end[1] != '"' ? end + 1 : end;
    }
    return count;
}

/* Print the name with that index from a JSON list of names, or the index itself. */
static void print_name(const char *json, int index) {
    const char *at = json;
    for (int i = 0; at && i <= index; ++i) {
        at = strchr(at, '"');
        const char *end = at ? strchr(at + 1, '"') : NULL;
        if (!end) break;
        if (i == index) {
            printf("%.*s", (int)(end - at - 1), at + 1);
            return;
        }
        at = end + 1;
    }
    printf("class %d", index);
}

/* Read a binary PPM or PGM into planes, normalised as the file says. */
static int read_image(const char *path, const int64_t *dims, const char *facts, float *planes) {
    double mean[MOST_CHANNELS] = {0}, std[MOST_CHANNELS], maximum = 255;
    char kind[3] = "";
    int width = 0, height = 0, largest = 0, channels = (int)dims[0];
    FILE *file = fopen(path, "rb");
    if (!file) return fail("cannot open the image");
    int fields = fscanf(file, "%2s %d %d %d", kind, &width, &height, &largest);
    fgetc(file);
    int stored = strcmp(kind, "P6") == 0 ? 3 : strcmp(kind, "P5") == 0 ? 1 : 0;
    int fits = stored == channels && width == dims[2] && height == dims[1];
    if (fields != 4 || !fits || largest > 255) {
        fclose(file);
        return fail("the image is not a PPM or PGM of the network's size");
    }
    for (int c = 0; c < channels; ++c) std[c] = 1;
    numbers(facts, "mean", mean, channels);
    numbers(facts, "std", std, channels);
    numbers(facts, "maximum", &maximum, 1);
    for (int i = 0; i < width * height * channels; ++i) {
        int byte = fgetc(file), c = i % channels;
        if (byte == EOF) {
            fclose(file);
            return fail("the image is cut off");
        }
        planes[(size_t)c * (size_t)(width * height) + (size_t)(i / channels)] =
            (float)((byte / maximum - mean[c]) / std[c]);
    }
    fclose(file);
    return 0;
}

static int read_raw(const char *path, float *values, size_t count) {
    FILE *file = fopen(path, "rb");
    if (!file) return fail("cannot open the input");
    size_t got = fread(values, sizeof *values, count, file);
    fclose(file);
    return got == count ? 0 : fail("the input is too short");
}

static void print_best(const float *output, int count, const char *classes) {
    for (int rank = 0, last = -1; rank < SHOWN && rank < count; ++rank) {
        int best = -1;
        for (int i = 0; i < count; ++i) {
            int equal = last >= 0 && output[i] == output[last];
            int after = last < 0 || output[i] < output[last] || (equal && i > last);
            if (after && (best < 0 || output[i] > output[best])) best = i;
        }
        if (best < 0) return;
        print_name(classes, best);
        printf("  %.4f\n", output[best]);
        last = best;
    }
}

int main(int count, char **words) {
    char error[512];
    int64_t in[8], out[8];
    int raw = count == 4 && strcmp(words[2], "--raw") == 0;
    if (count != 3 && !raw) return fail("usage: classify MODEL IMAGE | classify MODEL --raw FILE");
    surge_model *model = surge_load_file(words[1], error, sizeof error);
    if (!model) return fail(error);
    int in_rank = surge_input_shape(model, in, 8), out_rank = surge_output_shape(model, out, 8);
    size_t inputs = product(in, in_rank), outputs = product(out, out_rank);
    float *input = malloc(inputs * sizeof *input), *output = malloc(outputs * sizeof *output);
    int status = !input || !output ? fail("not enough memory") : 0;
    if (!status && !raw && (in_rank != 3 || in[0] > MOST_CHANNELS))
        status = fail("this network does not take images");
    if (!status)
        status = raw ? read_raw(words[3], input, inputs)
                     : read_image(words[2], in, surge_metadata(model, "preprocessing"), input);
    if (!status && surge_run(model, input, 1, output, error, sizeof error)) status = fail(error);
    if (!status && raw)
        for (size_t i = 0; i < outputs; ++i) printf("%.9g\n", output[i]);
    if (!status && !raw) print_best(output, (int)outputs, surge_metadata(model, "classes"));
    free(input);
    free(output);
    surge_free(model);
    return status;
}
