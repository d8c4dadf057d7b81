// The C functions. Nothing throws past this file.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "error.hpp"
#include "execute.hpp"
#include "surge_runtime.h"

using namespace surge;

struct surge_model {
    explicit surge_model(const Container& file)
        : plan(make_plan(file)), metadata(file.metadata()) {}

    Plan plan;
    std::map<std::string, std::string> metadata;
    const Kernels* kernels = nullptr;
    // One run at a time uses the pool; the others use their own thread.
    std::mutex pool_mutex;
    std::unique_ptr<ThreadPool> pool;
    // Memory of finished runs, for the next ones.
    std::mutex idle_mutex;
    std::vector<std::unique_ptr<Workspace>> idle;

    std::unique_ptr<Workspace> take_workspace() {
        {
            std::lock_guard<std::mutex> lock(idle_mutex);
            if (!idle.empty()) {
                std::unique_ptr<Workspace> workspace = std::move(idle.back());
                idle.pop_back();
                return workspace;
            }
        }
        return std::make_unique<Workspace>(plan, pool ? pool->threads() : 1);
    }

    void give_workspace(std::unique_ptr<Workspace> workspace) {
        std::lock_guard<std::mutex> lock(idle_mutex);
        idle.push_back(std::move(workspace));
    }
};

namespace {

void report(const char* what, char* error, size_t size) {
    if (error && size > 0) std::snprintf(error, size, "%s", what);
}

// Calls `body` and turns what it throws into text.
template <typename Body>
bool guarded(char* error, size_t size, Body body) {
    try {
        report("", error, size);
        body();
        return true;
    } catch (const std::bad_alloc&) {
        report("not enough memory", error, size);
    } catch (const std::exception& failure) {
        report(failure.what(), error, size);
    } catch (...) {
        report("unknown failure", error, size);
    }
    return false;
}

const Kernels* choose_kernels(const char* name) {
    const Kernels* found = find_kernels(name);
    if (!found)
        throw Error("this machine has no tier \"" + std::string(name) + "\"; it has " +
                    kernel_names());
    return found;
}

std::unique_ptr<surge_model> load(const uint8_t* data, size_t size) {
    Container file(data, size);
    auto model = std::make_unique<surge_model>(file);
    model->kernels = choose_kernels(std::getenv("SURGE_RUNTIME_TIER"));
    return model;
}

std::vector<uint8_t> read_file(const char* path) {
    std::unique_ptr<FILE, int (*)(FILE*)> file(path ? std::fopen(path, "rb") : nullptr,
                                               [](FILE* f) { return std::fclose(f); });
    if (!file) throw Error(std::string("cannot open ") + (path ? path : "(null)"));
    std::vector<uint8_t> content;
    uint8_t part[65536];
    size_t got = 0;
    while ((got = std::fread(part, 1, sizeof part, file.get())) > 0)
        content.insert(content.end(), part, part + got);
    if (std::ferror(file.get())) throw Error(std::string("cannot read ") + path);
    return content;
}

int64_t elements(const std::vector<int64_t>& dims) {
    int64_t product = 1;
    for (int64_t size : dims) product *= size;
    return product;
}

int write_dims(const std::vector<int64_t>& from, int64_t* to, int capacity) {
    for (size_t i = 0; to && i < from.size() && int(i) < capacity; ++i) to[i] = from[i];
    return int(from.size());
}

// What to say where the input named a row that no table has, and forget it.
std::string missing_rows(const surge_model& model,
                         const std::vector<std::unique_ptr<Workspace>>& spaces) {
    std::string text;
    for (const auto& space : spaces) {
        if (space->missing_in < 0) continue;
        const Node& node = model.plan.graph.nodes[size_t(space->missing_in)];
        char number[32];
        std::snprintf(number, sizeof number, "%.9g", double(space->missing));
        text = "\"" + node.name + "\" has no row " + number;
        space->missing_in = -1;
    }
    return text;
}

// Several samples at once are shared out whole; a single one is shared row by row.
void run_batch(surge_model& model, const float* input, int64_t batch, float* output) {
    const Graph& graph = model.plan.graph;
    int64_t in = elements(graph.input_dims), out = elements(graph.output_dims);
    std::unique_lock<std::mutex> lock(model.pool_mutex, std::try_to_lock);
    ThreadPool* pool = lock.owns_lock() ? model.pool.get() : nullptr;
    int workers = pool && batch > 1 ? pool->threads() : 1;
    std::vector<std::unique_ptr<Workspace>> spaces;
    for (int i = 0; i < workers; ++i) spaces.push_back(model.take_workspace());
    auto sample = [&](int64_t i, int worker) {
        Executor(model.plan, *model.kernels, *spaces[size_t(worker)], workers > 1 ? nullptr : pool)
            .run(input + i * in, output + i * out);
    };
    if (workers > 1)
        pool->run(batch, sample);
    else
        for (int64_t i = 0; i < batch; ++i) sample(i, 0);
    std::string wrong = missing_rows(model, spaces);
    for (auto& space : spaces) model.give_workspace(std::move(space));
    if (!wrong.empty()) throw Error(wrong);
}

}  // namespace

extern "C" {

int surge_abi_version(void) { return SURGE_ABI_VERSION; }

const char* surge_tiers(void) { return kernel_names(); }

surge_model* surge_load_memory(const void* data, size_t size, char* error, size_t error_size) {
    std::unique_ptr<surge_model> model;
    guarded(error, error_size, [&] {
        if (!data) throw Error("there is no data");
        model = load(static_cast<const uint8_t*>(data), size);
    });
    return model.release();
}

surge_model* surge_load_file(const char* path, char* error, size_t error_size) {
    std::unique_ptr<surge_model> model;
    guarded(error, error_size, [&] {
        std::vector<uint8_t> content = read_file(path);
        try {
            model = load(content.data(), content.size());
        } catch (const Error& failure) {
            throw Error(std::string(path) + ": " + failure.what());
        }
    });
    return model.release();
}

void surge_free(surge_model* model) { delete model; }

int surge_input_shape(const surge_model* model, int64_t* dims, int capacity) {
    return write_dims(model->plan.graph.input_dims, dims, capacity);
}

int surge_output_shape(const surge_model* model, int64_t* dims, int capacity) {
    return write_dims(model->plan.graph.output_dims, dims, capacity);
}

const char* surge_metadata(const surge_model* model, const char* key) {
    const char* text = nullptr;
    guarded(nullptr, 0, [&] {
        auto found = model->metadata.find(key);
        if (found != model->metadata.end()) text = found->second.c_str();
    });
    return text;
}

size_t surge_workspace_bytes(const surge_model* model) {
    return model->plan.arena_bytes + model->plan.scratch_bytes;
}

int surge_run(surge_model* model, const float* input, int64_t batch, float* output, char* error,
              size_t error_size) {
    bool done = guarded(error, error_size, [&] {
        if (batch < 0 || (batch > 0 && (!input || !output))) throw Error("there is no batch");
        run_batch(*model, input, batch, output);
    });
    return done ? 0 : -1;
}

int surge_step_count(const surge_model* model) { return int(model->plan.steps.size()); }

const char* surge_step_name(const surge_model* model, int step) {
    if (step < 0 || step >= surge_step_count(model)) return nullptr;
    int node = model->plan.steps[size_t(step)].node;
    return node < 0 ? "input" : model->plan.graph.nodes[size_t(node)].name.c_str();
}

const char* surge_step_kind(const surge_model* model, int step) {
    if (step < 0 || step >= surge_step_count(model)) return nullptr;
    int node = model->plan.steps[size_t(step)].node;
    return node < 0 ? "input" : op_name(model->plan.graph.nodes[size_t(node)].op);
}

int surge_profile(surge_model* model, const float* input, int64_t batch, float* output,
                  double* microseconds, char* error, size_t error_size) {
    bool done = guarded(error, error_size, [&] {
        if (batch < 0 || !microseconds || (batch > 0 && (!input || !output)))
            throw Error("there is no batch");
        const Graph& graph = model->plan.graph;
        int64_t in = elements(graph.input_dims), out = elements(graph.output_dims);
        std::unique_lock<std::mutex> lock(model->pool_mutex, std::try_to_lock);
        std::unique_ptr<Workspace> space = model->take_workspace();
        Executor executor(model->plan, *model->kernels, *space,
                          lock.owns_lock() ? model->pool.get() : nullptr);
        for (int64_t i = 0; i < batch; ++i)
            executor.profile(input + i * in, output + i * out, microseconds);
        std::vector<std::unique_ptr<Workspace>> spaces;
        spaces.push_back(std::move(space));
        std::string wrong = missing_rows(*model, spaces);
        model->give_workspace(std::move(spaces[0]));
        if (!wrong.empty()) throw Error(wrong);
    });
    return done ? 0 : -1;
}

int surge_set_threads(surge_model* model, int threads, char* error, size_t error_size) {
    bool done = guarded(error, error_size, [&] {
        if (threads < 1 || threads > 1024)
            throw Error("threads must be from 1 to 1024, not " + std::to_string(threads));
        std::lock_guard<std::mutex> lock(model->pool_mutex);
        auto fresh = threads > 1 ? std::make_unique<ThreadPool>(threads) : nullptr;
        model->pool = std::move(fresh);
        std::lock_guard<std::mutex> idle_lock(model->idle_mutex);
        model->idle.clear();  // their scratch space was for another number of threads
    });
    return done ? 0 : -1;
}

int surge_set_tier(surge_model* model, const char* tier, char* error, size_t error_size) {
    bool done =
        guarded(error, error_size, [&] { model->kernels = choose_kernels(tier ? tier : "auto"); });
    return done ? 0 : -1;
}

const char* surge_tier(const surge_model* model) { return model->kernels->name; }

}  // extern "C"
