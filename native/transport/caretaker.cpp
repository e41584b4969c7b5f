#include "transport/caretaker.hpp"

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <set>
#include <thread>

#include <pthread.h>
#include <unistd.h>

#include "collective/segment.hpp"

namespace ridgeline {
namespace {

class Caretaker {
public:
  static Caretaker &get() {
    static std::mutex lock;
    static Caretaker *one = nullptr;
    static pid_t process = 0;
    std::lock_guard<std::mutex> hold(lock);
    if (!one || process != getpid()) one = new Caretaker, process = getpid(); // never destroyed: its thread outlives main
    return *one;
  }

  void add(Tended *one) {
    std::lock_guard<std::mutex> hold(lock_);
    all_.insert(one);
    if (!is_running_) {
      is_running_ = true;
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before); // signals belong to the threads of Python
      std::thread([this] { run(); }).detach();
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    change_.notify_one();
  }

  void remove(Tended *one) {
    std::lock_guard<std::mutex> hold(lock_);
    all_.erase(one);
  }

private:
  void run() {
    std::unique_lock<std::mutex> hold(lock_);
    std::int64_t last = monotonic_ns();
    for (;;) {
      while (all_.empty()) {
        change_.wait(hold);
        last = monotonic_ns();
      }
      const std::int64_t now = monotonic_ns();
      const bool was_stopped = now - last > 500'000'000;
      last = now;
      bool is_busy = false;
      for (Tended *one : all_) is_busy = one->tend(now, was_stopped) || is_busy;
      change_.wait_for(hold, std::chrono::nanoseconds(is_busy ? Tended::kTickNs : Tended::kIdleTickNs));
    }
  }

  std::mutex lock_;
  std::condition_variable change_;
  std::set<Tended *> all_;
  bool is_running_ = false;
};

} // namespace

void start_tending(Tended *one) { Caretaker::get().add(one); }
void stop_tending(Tended *one) { Caretaker::get().remove(one); }

} // namespace ridgeline
