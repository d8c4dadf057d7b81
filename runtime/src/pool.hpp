// Threads that sleep between calls, and look for work for some microseconds before they do. Waiting
// awake for longer would be slower by a factor of fifty beside a busy neighbour.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace surge {

class ThreadPool {
   public:
    using Task = std::function<void(int64_t index, int worker)>;

    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return int(workers_.size()) + 1; }
    // Call task(0..count-1); the caller is worker 0 and takes part. Tasks must not throw.
    void run(int64_t count, const Task& task);

   private:
    void stop();
    void work(int worker);
    void take_tasks(const Task& task, int worker);

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    const Task* task_ = nullptr;
    int64_t count_ = 0;
    std::atomic<uint64_t> round_{0};
    std::atomic<int> busy_{0};
    int sleeping_ = 0;
    bool stopping_ = false;
    std::atomic<int64_t> next_{0};
};

}  // namespace surge
