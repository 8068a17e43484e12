// A model's layers on the program's own threads: a step is checked once, then each layer is a call.
#include <kvcache.h>

#include <cassert>
#include <cstdint>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

static void must(kvcache_error *error)
{
    if (error == nullptr)
        return;
    std::runtime_error thrown(kvcache_error_message(error));
    kvcache_error_free(error);
    throw thrown;
}

template <auto Free> struct Deleter {
    template <typename T> void operator()(T *object) const { Free(object); }
};

// Runs the library's pieces of work: one on this thread, the others on threads of their own.
extern "C" void parallel_for(void *, std::size_t tasks, kvcache_task task, void *argument)
{
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < tasks; ++i)
        threads.emplace_back(task, argument, i);
    if (tasks > 0)
        task(argument, 0);
    for (std::thread &thread : threads)
        thread.join();
}

int main()
{
    constexpr std::int64_t layers = 2, max_t = 512, heads = 4, head_dim = 64, tokens = 300;
    kvcache_attributes attributes = kvcache_attributes_default();
    attributes.num_layer = layers;
    attributes.cache_layout = 3; // (L, 2, H, MaxT, Dh)
    kvcache_operator *made = nullptr;
    must(kvcache_create(&attributes, &made));
    std::unique_ptr<kvcache_operator, Deleter<kvcache_free>> op(made);
    kvcache_workers *pool = nullptr;
    must(kvcache_workers_from(2, parallel_for, nullptr, &pool));
    std::unique_ptr<kvcache_workers, Deleter<kvcache_workers_free>> workers(pool);

    std::vector<float> memory(layers * 2 * heads * max_t * head_dim);
    std::int64_t cache_shape[] = {layers, 2, heads, max_t, head_dim};
    const DLTensor cache = {memory.data(), {kDLCPU, 0}, 5, {kDLFloat, 32, 1}, cache_shape, nullptr, 0};
    const auto list = [](std::int64_t *data, std::int64_t *shape) {
        return DLTensor{data, {kDLCPU, 0}, 1, {kDLInt, 64, 1}, shape, nullptr, 0};
    };
    std::int64_t starts[] = {0, tokens}, zero[] = {0}, most[] = {tokens}, two[] = {2}, one[] = {1};
    const DLTensor seqstarts = list(starts, two), cachestarts = list(zero, one), bound = list(most, one);
    // A prompt: the tokens before it are none, so both kinds of starts are the same.
    const kvcache_indices indices = {&seqstarts, &seqstarts, &cachestarts, &cachestarts, &bound, &bound};

    kvcache_step *begun = nullptr;
    must(kvcache_step_begin(op.get(), DLDataType{kDLFloat, 32, 1}, &indices, &cache, nullptr, &begun));
    std::unique_ptr<kvcache_step, Deleter<kvcache_step_end>> step(begun);
    std::int64_t shape[3] = {};
    must(kvcache_step_shape(step.get(), shape));
    const std::size_t elements = static_cast<std::size_t>(shape[0] * shape[1] * shape[2]);
    std::vector<float> current(elements), key_data(elements), value_data(elements);
    const auto rows = [&shape](std::vector<float> &data) {
        return DLTensor{data.data(), {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, shape, nullptr, 0};
    };
    const DLTensor current_rows = rows(current), key = rows(key_data), value = rows(value_data);
    for (std::int64_t layer = 0; layer < layers; ++layer) {
        for (std::size_t i = 0; i < elements; ++i)
            current[i] = static_cast<float>(layer + 1) * static_cast<float>(i % 1000); // this layer's projections
        must(kvcache_step_layer(step.get(), layer, &current_rows, &current_rows, &key, &value, workers.get()));
        assert(key_data == current && value_data == current);
    }
    std::cout << shape[0] << " rows of key in each of " << layers << " layers\n";
}
