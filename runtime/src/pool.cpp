#include "pool.hpp"

namespace surge {

ThreadPool::ThreadPool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
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
    {
        std::lock_guard<std::mutex> lock(mutex_);
        task_ = &task;
        count_ = count;
        next_.store(0, std::memory_order_relaxed);
        ++round_;
    }
    wake_.notify_all();
    take_tasks(task, 0);
    std::unique_lock<std::mutex> lock(mutex_);
    // A worker that another process keeps from waking up comes too late and finds nothing: only
    // those that have begun are waited for.
    task_ = nullptr;
    done_.wait(lock, [this] { return busy_ == 0; });
}

void ThreadPool::work(int worker) {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return stopping_ || round_ != seen; });
        if (stopping_) return;
        seen = round_;
        const Task* task = task_;
        if (!task) continue;
        ++busy_;
        lock.unlock();
        take_tasks(*task, worker);
        lock.lock();
        if (--busy_ == 0) done_.notify_one();
    }
}

}  // namespace surge
