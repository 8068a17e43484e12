// Three layers of a model, step by step over one cache: objects that free themselves, errors as exceptions, and a pool
// of std::threads.
#include <kvcache.h>

#include <atomic>
#include <cstdint>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Refused : std::runtime_error {
    explicit Refused(kvcache_error *error)
        : std::runtime_error(kvcache_error_message(error)), kind(kvcache_error_kind(error))
    {
        kvcache_error_free(error);
    }
    std::string kind;
};

void done(kvcache_error *error)
{
    if (error != nullptr)
        throw Refused(error);
}

void check(bool condition, const char *what)
{
    if (!condition)
        throw std::logic_error(what);
}

template <auto Free>
struct Deleter {
    template <typename T>
    void operator()(T *object) const { Free(object); }
};
using Operator = std::unique_ptr<kvcache_operator, Deleter<kvcache_free>>;
using Step = std::unique_ptr<kvcache_step, Deleter<kvcache_step_end>>;
using Workers = std::unique_ptr<kvcache_workers, Deleter<kvcache_workers_free>>;

// A tensor that owns its elements.
template <typename T, std::uint8_t Code>
class Tensor {
public:
    explicit Tensor(std::vector<std::int64_t> shape, std::vector<T> elements = {})
        : shape_(std::move(shape)), elements_(std::move(elements))
    {
        std::size_t len = 1;
        for (std::int64_t dim : shape_)
            len *= static_cast<std::size_t>(dim);
        elements_.resize(len);
        describe_ = {elements_.data(), {kDLCPU, 0}, static_cast<std::int32_t>(shape_.size()),
                     {Code, 8 * sizeof(T), 1}, shape_.data(), nullptr, 0};
    }
    Tensor(const Tensor &) = delete;
    Tensor &operator=(const Tensor &) = delete;
    const DLTensor *operator&() const { return &describe_; }
    T &operator[](std::size_t i) { return elements_[i]; }
    std::size_t size() const { return elements_.size(); }

private:
    std::vector<std::int64_t> shape_;
    std::vector<T> elements_;
    DLTensor describe_;
};
using Floats = Tensor<float, kDLFloat>;
using Indices = Tensor<std::int64_t, kDLInt>;

extern "C" void on_threads(void *context, std::size_t tasks, kvcache_task task, void *argument)
{
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < tasks; ++i)
        threads.emplace_back(task, argument, i);
    if (tasks > 0)
        task(argument, 0);
    for (std::thread &thread : threads)
        thread.join();
    static_cast<std::atomic<int> *>(context)->fetch_add(1);
}

constexpr std::int64_t layers = 3, heads = 8, head_dim = 128, prompt = 700, steps = 4, max_t = 1024;

// What layer `layer` computes for element `i` of token `t`.
float element(std::int64_t layer, std::int64_t t, std::int64_t i)
{
    return static_cast<float>(layer * 1000000 + t * 1000 + i % 997);
}

void decode()
{
    kvcache_attributes attributes = kvcache_attributes_default();
    attributes.num_layer = layers;
    attributes.cache_layout = 3;
    kvcache_operator *made = nullptr;
    done(kvcache_create(&attributes, &made));
    Operator op(made);
    std::atomic<int> loops{0};
    kvcache_workers *threads = nullptr;
    done(kvcache_workers_from(2, on_threads, &loops, &threads));
    Workers workers(threads);

    Floats cache({layers, 2, heads, max_t, head_dim});
    for (std::int64_t step = 0, past = 0; step < steps; ++step) {
        const std::int64_t tokens = step == 0 ? prompt : 1;
        Indices seqstarts({2}, {0, tokens}), kvstarts({2}, {0, past + tokens});
        Indices cachestarts({1}, {100}), start_pos({1}, {past});
        Indices max_seqlen({1}, {tokens}), max_kvlen({1}, {past + tokens});
        const kvcache_indices indices = {&seqstarts, &kvstarts, &cachestarts, &start_pos, &max_seqlen, &max_kvlen};
        kvcache_step *begun = nullptr;
        done(kvcache_step_begin(op.get(), DLDataType{kDLFloat, 32, 1}, &indices, &cache, nullptr, &begun));
        Step calls(begun);
        std::int64_t shape[3] = {};
        done(kvcache_step_shape(calls.get(), shape));
        check(shape[0] == past + tokens && shape[1] == heads && shape[2] == head_dim, "the shape of key");
        Floats key({shape[0], shape[1], shape[2]}), value({shape[0], shape[1], shape[2]});
        Floats current_key({tokens, heads, head_dim}), current_value({tokens, heads, head_dim});
        for (std::int64_t layer = 0; layer < layers; ++layer) {
            for (std::int64_t t = 0; t < tokens; ++t)
                for (std::int64_t i = 0; i < heads * head_dim; ++i) {
                    const auto at = static_cast<std::size_t>(t * heads * head_dim + i);
                    current_key[at] = element(layer, past + t, i);
                    current_value[at] = -current_key[at];
                }
            done(kvcache_step_layer(calls.get(), layer, &current_key, &current_value, &key, &value, workers.get()));
            for (std::int64_t t = 0; t < past + tokens; ++t)
                for (std::int64_t i = 0; i < heads * head_dim; ++i) {
                    const auto at = static_cast<std::size_t>(t * heads * head_dim + i);
                    check(key[at] == element(layer, t, i) && value[at] == -element(layer, t, i), "key and value");
                }
        }
        for (std::int64_t layer : {std::int64_t{-1}, layers}) {
            try {
                done(kvcache_step_layer(calls.get(), layer, &current_key, &current_value, &key, &value, nullptr));
                check(false, "a layer that the cache does not have is refused");
            } catch (const Refused &error) {
                check(error.kind == "attribute_out_of_range", error.what());
            }
        }
        past += tokens;
    }
    check(loops > 0, "the prompt is split among threads");
}

} // namespace

int main()
{
    try {
        decode();
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    std::cout << "ok\n";
}
