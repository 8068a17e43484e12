// The scheduler of the fibers, and the checks of collective operations and accesses.

#include "shim.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

// Rust's test harness leaks by design, and the option does not work on fibers' stacks.
extern "C" const char* __asan_default_options() { return "detect_leaks=0:detect_stack_use_after_return=0"; }
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }
#endif

namespace shim {
namespace {

constexpr unsigned WARP = 32;
constexpr size_t STACK = 256 << 10;
constexpr const char* NAMES[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_xor_sync", "__syncwarp", "__syncthreads"};

enum class State { Ready, Waiting, Done };

// A thread of the block.
struct Fiber {
    // Where it begins, and where it goes on.
    ucontext_t context;
    jmp_buf here;
    bool begun;
    State state;
    // The collective operation that it waits at; `value` is its argument, then its result.
    Collective collective;
    unsigned mask;
    unsigned argument;
    int line;
    uint64_t value;
};

// The block that runs on this operating-system thread, with its fibers and their stacks.
struct Block {
    std::vector<Fiber> fibers;
    unsigned char* stacks = nullptr;
    ucontext_t scheduler;
    jmp_buf scheduler_here;
    void (*kernel)(const void*) = nullptr;
    const ShimLaunch* launch = nullptr;
    unsigned block = 0;
    unsigned thread = 0;
    bool failed = false;
#if defined(__SANITIZE_ADDRESS__)
    const void* scheduler_stack = nullptr;
    size_t scheduler_stack_len = 0;
    void* scheduler_fake_stack = nullptr;
#endif

    ~Block() {
        if (stacks != nullptr) {
            munmap(stacks, STACK * fibers.size());
        }
    }

    void make_room(unsigned threads) {
        if (fibers.size() == threads) {
            return;
        }
        if (stacks != nullptr) {
            munmap(stacks, STACK * fibers.size());
        }
        fibers.resize(threads);
        void* memory = mmap(nullptr, STACK * threads, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            std::perror("stacks for fibers");
            std::abort();
        }
        stacks = static_cast<unsigned char*>(memory);
    }

    // Called by a fiber.
    void to_scheduler() {
        Fiber& self = fibers[thread];
#if defined(__SANITIZE_ADDRESS__)
        void* fake_stack = nullptr;
        const bool ends = self.state == State::Done || failed;
        __sanitizer_start_switch_fiber(ends ? nullptr : &fake_stack, scheduler_stack, scheduler_stack_len);
        swapcontext(&self.context, &scheduler);
        __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack, &scheduler_stack_len);
#else
        if (_setjmp(self.here) == 0) {
            _longjmp(scheduler_here, 1);
        }
#endif
    }

    // Called by the scheduler.
    void to_fiber(unsigned next) {
        thread = next;
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_start_switch_fiber(&scheduler_fake_stack, stacks + STACK * next, STACK);
        swapcontext(&scheduler, &fibers[next].context);
        __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#else
        // A jump, unlike a switch of contexts, makes no call of the system.
        if (_setjmp(scheduler_here) == 0) {
            Fiber& fiber = fibers[next];
            if (fiber.begun) {
                _longjmp(fiber.here, 1);
            }
            fiber.begun = true;
            setcontext(&fiber.context);
        }
#endif
    }

    void report_fault(const char* format, va_list arguments) {
        failed = true;
        char* to = launch->message;
        size_t len = launch->message_len;
        const int written = std::snprintf(to, len, "block %u, thread %u: ", block, thread);
        if (written > 0 && static_cast<size_t>(written) < len) {
            std::vsnprintf(to + written, len - written, format, arguments);
        }
    }

    void report_fault(const char* format, ...) __attribute__((format(printf, 2, 3))) {
        va_list arguments;
        va_start(arguments, format);
        report_fault(format, arguments);
        va_end(arguments);
    }

    // Completes the collective operation that fibers first..first + count wait at; a fault if they wait at different
    // ones.
    void join(unsigned first, unsigned count) {
        const Fiber& leader = fibers[first];
        for (unsigned i = first; i < first + count; ++i) {
            const Fiber& fiber = fibers[i];
            thread = i;
            if (fiber.state != State::Waiting) {
                report_fault("ended while thread %u waits at %s in line %d", first, NAMES[unsigned(leader.collective)],
                         leader.line);
                return;
            }
            if (fiber.collective != leader.collective || fiber.line != leader.line) {
                report_fault("waits at %s in line %d while thread %u waits at %s in line %d",
                         NAMES[unsigned(fiber.collective)], fiber.line, first, NAMES[unsigned(leader.collective)],
                         leader.line);
                return;
            }
            if (fiber.mask != 0xffffffff) {
                report_fault("%s in line %d for some lanes only", NAMES[unsigned(fiber.collective)], fiber.line);
                return;
            }
        }
        std::vector<uint64_t> values(count);
        bool any = false;
        for (unsigned i = 0; i < count; ++i) {
            values[i] = fibers[first + i].value;
            any |= values[i] != 0;
        }
        for (unsigned i = 0; i < count; ++i) {
            Fiber& fiber = fibers[first + i];
            const unsigned argument = fiber.argument;
            unsigned from = i;
            switch (fiber.collective) {
                case Collective::Shuffle:
                    from = argument % WARP;
                    break;
                case Collective::ShuffleUp:
                    from = i < argument ? i : i - argument;
                    break;
                case Collective::ShuffleXor:
                    from = i ^ argument;
                    break;
                case Collective::SyncWarp:
                case Collective::SyncThreads:
                    break;
            }
            // Beyond the warp a lane gets its own value, as on a GPU.
            from = from < count ? from : i;
            fiber.value = fiber.collective == Collective::SyncThreads ? any : values[from];
            fiber.state = State::Ready;
        }
    }

    // Completes the collective operations of all warps that wait at one or, if there are none, that of the block.
    void join_all(uint64_t& collectives_left) {
        const unsigned threads = launch->block;
        bool progress = false;
        bool barrier = false;
        for (unsigned first = 0; first < threads && !failed; first += WARP) {
            bool warp_waits = false;
            for (unsigned i = first; i < first + WARP; ++i) {
                const bool waits = fibers[i].state == State::Waiting;
                barrier |= waits && fibers[i].collective == Collective::SyncThreads;
                warp_waits |= waits && fibers[i].collective != Collective::SyncThreads;
            }
            if (warp_waits) {
                if (collectives_left-- == 0) {
                    report_fault("does not end");
                    return;
                }
                join(first, WARP);
                progress = true;
            }
        }
        if (!progress && barrier && !failed) {
            join(0, threads);
        }
    }

    bool run_block() {
        uint64_t collectives_left = launch->max_collectives;
        const unsigned threads = launch->block;
        std::vector<unsigned> order(threads);
        std::iota(order.begin(), order.end(), 0u);
        arrange(order);
        for (unsigned i = 0; i < threads; ++i) {
            prepare(i);
        }
        for (;;) {
            bool ran = false;
            for (unsigned i : order) {
                if (fibers[i].state == State::Ready) {
                    to_fiber(i);
                    ran = true;
                    if (failed) {
                        return false;
                    }
                }
            }
            if (!ran) {
                break;
            }
            join_all(collectives_left);
            if (failed) {
                return false;
            }
        }
        return true;
    }

    // Orders the threads by the launch's seed: 0 forward, 1 backward, others random.
    void arrange(std::vector<unsigned>& order) {
        if (launch->seed == 1) {
            std::reverse(order.begin(), order.end());
        } else if (launch->seed > 1) {
            std::shuffle(order.begin(), order.end(), std::mt19937_64(launch->seed + block));
        }
    }

    void prepare(unsigned i);
};

thread_local Block current;

void start() {
    Block& block = current;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &block.scheduler_stack, &block.scheduler_stack_len);
#endif
    block.kernel(block.launch->parameters);
    block.fibers[block.thread].state = State::Done;
    block.to_scheduler();
}

void Block::prepare(unsigned i) {
    Fiber& fiber = fibers[i];
    fiber.state = State::Ready;
    fiber.begun = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks + STACK * i;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    // An earlier fiber may have been dropped in mid-function, its frames still poisoned for AddressSanitizer.
    __asan_unpoison_memory_region(stacks + STACK * i, STACK);
#endif
    makecontext(&fiber.context, start, 0);
}

}  // namespace

Index thread_index() { return {current.thread}; }
Index block_index() { return {current.block}; }
Index grid_size() { return {current.launch->grid}; }

void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    current.report_fault(format, arguments);
    va_end(arguments);
    for (;;) {
        current.to_scheduler();
    }
}

void access(const void* at, size_t len, unsigned kind) {
    static constexpr const char* KINDS[] = {"read", "write", "atomic operation", "read of what is written"};
    const auto address = reinterpret_cast<uintptr_t>(at);
    if (address % len != 0) {
        fail("%s of %zu bytes at an address that is no multiple of it", KINDS[kind], len);
    }
    const ShimLaunch& launch = *current.launch;
    for (uint64_t i = 0; i < launch.operand_count; ++i) {
        const ShimOperand& operand = launch.operands[i];
        const auto first = reinterpret_cast<uintptr_t>(operand.data);
        if (address < first || address - first >= operand.len || operand.len - (address - first) < len) {
            continue;
        }
        if (operand.access != kind && !(kind == 3 && operand.access < 2)) {
            fail("%s of operand %llu", KINDS[kind], static_cast<unsigned long long>(i));
        }
        if (operand.writers != nullptr) {
            const uint64_t self = uint64_t(current.block) * launch.block + current.thread + 1;
            for (size_t j = 0; j < len; ++j) {
                uint64_t& writer = operand.writers[address - first + j];
                if (writer != 0 && writer != self) {
                    fail("%s byte %llu of operand %llu, which thread %llu of block %llu writes", KINDS[kind],
                         static_cast<unsigned long long>(address - first + j), static_cast<unsigned long long>(i),
                         static_cast<unsigned long long>((writer - 1) % launch.block),
                         static_cast<unsigned long long>((writer - 1) / launch.block));
                }
                writer = kind == 3 ? writer : self;
            }
        }
        return;
    }
    fail("%s of %zu bytes outside of all operands", KINDS[kind], len);
}

uint64_t together(Collective collective, unsigned mask, uint64_t value, unsigned argument, int line) {
    Fiber& self = current.fibers[current.thread];
    self.state = State::Waiting;
    self.collective = collective;
    self.mask = mask;
    self.value = value;
    self.argument = argument;
    self.line = line;
    current.to_scheduler();
    return self.value;
}

int run(void (*kernel)(const void*), std::initializer_list<Shared> shared, const ShimLaunch& launch) {
    Block& block = current;
    block.make_room(launch.block);
    block.kernel = kernel;
    block.launch = &launch;
    block.failed = false;
    for (block.block = 0; block.block < launch.grid; ++block.block) {
        // Shared memory starts with arbitrary contents.
        for (const Shared& variable : shared) {
            std::memset(variable.data, 0xa5, variable.len);
        }
        if (!block.run_block()) {
            return 1;
        }
    }
    return 0;
}

}  // namespace shim
