#include "pool.hpp"

#include <chrono>

namespace surge {
namespace {

using Clock = std::chrono::steady_clock;

// Longest time to look for news before going to sleep. Between two steps of a network there is less
// to wait for, so threads of a running network stay awake; an idle one costs nothing.
constexpr auto kPatience = std::chrono::microseconds(25);

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Look until `ready` says so, but not for long, and let others run in between: what is waited for
// may have to happen on this very core.
template <typename Ready>
void look_for(Ready ready) {
    for (int i = 0; i < 64; ++i) {
        if (ready()) return;
        pause();
    }
    Clock::time_point end = Clock::now() + kPatience;
    while (!ready() && Clock::now() < end) std::this_thread::yield();
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
    try {
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
    } catch (...) {  // the system has no more threads: those that run must end first
        stop();
        throw;
    }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::take_tasks(const Task& task, int worker) {
    for (;;) {
        int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
        if (index >= count_) return;
        task(index, worker);
    }
}

void ThreadPool::run(int64_t count, const Task& task) {
    if (workers_.empty() || count < 2) {
        for (int64_t i = 0; i < count; ++i) task(i, 0);
        return;
    }
    bool asleep = false;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        task_ = &task;
        count_ = count;
        next_.store(0, std::memory_order_relaxed);
        round_.fetch_add(1, std::memory_order_release);
        asleep = sleeping_ > 0;
    }
    if (asleep) wake_.notify_all();
    take_tasks(task, 0);
    {
        // A worker that another process keeps from waking up comes too late and finds nothing:
        // only those that have begun are waited for.
        std::lock_guard<std::mutex> lock(mutex_);
        task_ = nullptr;
    }
    look_for([this] { return busy_.load(std::memory_order_acquire) == 0; });
    if (busy_.load(std::memory_order_acquire) == 0) return;
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return busy_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::work(int worker) {
    uint64_t seen = 0;
    for (;;) {
        look_for([&] { return round_.load(std::memory_order_acquire) != seen; });
        std::unique_lock<std::mutex> lock(mutex_);
        ++sleeping_;
        wake_.wait(lock, [&] { return stopping_ || round_.load() != seen; });
        --sleeping_;
        if (stopping_) return;
        seen = round_.load();
        const Task* task = task_;
        if (!task) continue;
        busy_.fetch_add(1, std::memory_order_relaxed);
        lock.unlock();
        take_tasks(*task, worker);
        lock.lock();
        if (busy_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_one();
    }
}

}  // namespace surge
