// Run a plan on one sample at a time.
#pragma once

#include "kernels.hpp"
#include "memory.hpp"
#include "plan.hpp"
#include "pool.hpp"
#include "rows.hpp"
#include "tokens.hpp"

namespace surge {

// The memory of one run: values that live between steps, and scratch space for every worker.
struct Workspace {
    Workspace(const Plan& plan, int workers)
        : arena(plan.arena_bytes),
          scratch(plan.scratch_bytes * size_t(workers)),
          rows(size_t(workers)) {
        for (auto& list : rows) list.reserve(plan.pool_rows);  // nothing may throw while running
    }
    AlignedMemory arena;
    AlignedMemory scratch;
    std::vector<std::vector<const float*>> rows;  // of a pool's window
    // A number in the input that no row of a table has, and the operator that met it.
    int missing_in = -1;
    float missing = 0;
};

// Point the end of a row at the channels of one group.
void choose_channels(FinishRow& end, const Node& node, int64_t first, int64_t channels);

// Columns of a row that one task makes.
struct Columns {
    int64_t first, end;
    int64_t count() const { return end - first; }
};

class Executor {
   public:
    Executor(const Plan& plan, const Kernels& kernels, Workspace& workspace, ThreadPool* pool)
        : plan_(plan), kernels_(kernels), tokens_(token_kernels(kernels)), workspace_(workspace),
          pool_(pool) {}

    // One sample in, one sample out, both in torch's order.
    void run(const float* input, float* output);
    // The same; the time of every step is added to microseconds[step].
    void profile(const float* input, float* output, double* microseconds);

   private:
    void run_step(const Step& step, const float* input);
    void input_step(const Step& step, const float* input);
    void pool_step(const Step& step, const Node& node);
    void clear_sinks(const Step& step);
    int64_t pieces(const Step& step, const Node& node) const;
    void write_sinks(const Step& step, int64_t y, Columns columns, const float* row);
    void pad_input(const Step& step, const Node& node);
    // Columns of a row, at their places in `out`; only operators that can be split make parts.
    void row(const Step& step, int64_t y, Columns columns, float* out, char* scratch);
    void binary_row(const Step& step, const Node& node, int64_t y, Columns columns, float* out,
                    char* scratch);
    void float_row(const Step& step, const Node& node, int64_t y, Columns columns, float* out,
                   char* scratch);
    void plane_row(const Step& step, const Node& node, int64_t y, Columns columns, float* out,
                   char* scratch);
    void byte_row(const Step& step, const Node& node, int64_t y, Columns columns, float* out,
                  char* scratch);
    void average_row(const Node& node, const RowSource& in, int64_t y, int64_t pixels, float* out);
    void affine_row(const Node& node, int64_t y, Columns columns, float* out);
    void token_row(const Step& step, const Node& node, int64_t y, Columns columns, float* out,
                   char* scratch);
    void embedding_row(const Step& step, const Node& node, float* out);
    void add_rows(const Step& step, const Node& node, float* out);
    void prepend_rows(const Step& step, const Node& node, float* out);
    void softmax_row(const Node& node, int64_t y, Columns columns, float* out);
    void norm_row(const Step& step, const Node& node, int64_t y, Columns columns, float* out,
                  char* scratch);
    void arrange(const Step& step, const Node& node);
    void matmul_row(const Step& step, const Node& node, int64_t y, Columns columns, float* out,
                    char* scratch);
    // Products of pixels, from x on, with what a head has of the second factor.
    const int32_t* binary_products(const Step& step, const Node& node, int64_t head, int64_t x,
                                   int64_t pixels, char* scratch);
    const float* real_products(const Step& step, const Node& node, int64_t head, int64_t x,
                               int64_t pixels, char* scratch);
    FinishRow finish(const Node& node, int64_t y, int64_t column, float* out) const;
    void write_to(float* output);
    void copy_out(float* output) const;
    // Calls task(index, worker), by several threads if the work is worth it.
    template <typename Task>
    void share(int64_t count, int64_t work, const Task& task);

    const Shape& shape(int value) const { return plan_.graph.values[size_t(value)]; }
    // Memory of a value, or null if it is only needed as bits.
    float* value(int index) const;
    template <typename T>
    T* buffer(int index) const {
        return workspace_.arena.as<T>(plan_.buffers[size_t(index)].offset);
    }

    const Plan& plan_;
    const Kernels& kernels_;
    const TokenKernels& tokens_;
    Workspace& workspace_;
    ThreadPool* pool_;
    float* output_ = nullptr;  // where the result goes, if it needs no copy
};

}  // namespace surge
