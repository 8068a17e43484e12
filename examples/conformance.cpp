// A program for `python -m kvcache_ops conformance --program './a.out {case} {output}'`: C++17, no library.
// It reads a case, calls `operate` for each of its calls, and writes what that returns. Put your operator there.
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

// `dtype` is safetensors' name, such as F32, F16, BF16, I8, F8_E4M3, I64; U8 is a packed int4 cache.
struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::string bytes;  // row-major, little-endian
};
using Tensors = std::map<std::string, Tensor>;
using Texts = std::map<std::string, std::string>;

struct Result {
    Tensors outputs;
    std::string error, unsupported;  // not empty: the call is refused, or your operator does not do this
};

// Your operator. `attributes` are the given ones; `int4_shape` is the shape in elements of an int4 cache.
// Replaces the bytes of `cache` and `scale` in `state`, and returns `key` and `value`, or `attn_output` and, with
// `has_mass`, `attention_mass`.
Result operate(const std::string &op, const Texts &attributes, const std::vector<int64_t> &int4_shape, bool has_mass,
               const Tensors &inputs, Tensors &state) {
    (void)op, (void)attributes, (void)int4_shape, (void)has_mass, (void)state;
    const auto start_pos = inputs.find("start_pos");
    if (start_pos != inputs.end() && start_pos->second.dtype == "I64")
        for (size_t at = 0; at + 8 <= start_pos->second.bytes.size(); at += 8) {
            int64_t value;
            std::memcpy(&value, &start_pos->second.bytes[at], 8);
            if (value < 0) return {{}, "start_pos is negative", ""};
        }
    return {{}, "", "all but negative start_pos"};
}

std::string read_file(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) std::exit(1);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<int64_t> integers(const std::string &text) {
    std::vector<int64_t> found;
    for (const char *at = text.c_str(); *at;) {
        char *end;
        const int64_t value = std::strtoll(at, &end, 10);
        if (end == at) { ++at; continue; }
        found.push_back(value);
        at = end;
    }
    return found;
}

Tensors read_tensors(const std::string &file) {
    uint64_t length;
    std::memcpy(&length, file.data(), 8);
    const std::string header = file.substr(8, length);
    static const std::regex entry(
        R"re("([^"]+)":\{"dtype":"(\w+)","shape":\[([\d,]*)\],"data_offsets":\[(\d+),(\d+)\]\})re");
    Tensors tensors;
    for (std::sregex_iterator at(header.begin(), header.end(), entry), end; at != end; ++at) {
        const uint64_t from = std::stoull((*at)[4]), to = std::stoull((*at)[5]);
        tensors[(*at)[1]] = {(*at)[2], integers((*at)[3]), file.substr(8 + length + from, to - from)};
    }
    return tensors;
}

std::string quoted(const std::string &text) {
    std::string json = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') json += '\\';
        json += static_cast<unsigned char>(c) < 32 ? ' ' : c;
    }
    return json + "\"";
}

void write_results(const std::string &path, const Tensors &tensors, const Texts &metadata) {
    std::string header = "{\"__metadata__\":{", data;
    for (const auto &[name, text] : metadata)
        header += (header.back() == '{' ? "" : ",") + quoted(name) + ":" + quoted(text);
    header += "}";
    for (const auto &[name, tensor] : tensors) {
        std::string shape;
        for (const int64_t n : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(n);
        header += "," + quoted(name) + ":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[" + shape +
                  "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
        data += tensor.bytes;
        header += std::to_string(data.size()) + "]}";
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char *>(&length), 8) << header << data;
}

// What case.yaml says under a key at the start of a line: up to the next line that begins with a letter.
std::string section(const std::string &yaml, const std::string &key) {
    const std::string text = "\n" + yaml, start = "\n" + key + ":";
    size_t from = text.find(start);
    if (from == std::string::npos) return "";
    size_t to = from += start.size();
    do to = text.find('\n', to + 1);
    while (to != std::string::npos && !std::isalpha(static_cast<unsigned char>(text[to + 1])));
    return text.substr(from, to == std::string::npos ? to : to - from);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const std::string folder = argv[1], yaml = read_file(folder + "/case.yaml");
    const Tensors tensors = read_tensors(read_file(folder + "/tensors.safetensors"));

    const std::string given = section(yaml, "attributes");
    static const std::regex attribute(R"((\w+):\s+([^,}\s]+))"), word(R"(\w+)");
    Texts attributes;
    for (std::sregex_iterator at(given.begin(), given.end(), attribute), end; at != end; ++at)
        attributes[(*at)[1]] = (*at)[2];
    std::string op = section(yaml, "operator");  // only attention's cases name it
    std::smatch name;
    op = std::regex_search(op, name, word) ? name.str()
         : section(yaml, "domain").empty() ? "KeyValueCache"
                                           : "StaticKeyValueCache";
    std::string int4 = section(yaml, "int4");
    if (const size_t colon = int4.find(':'); colon != std::string::npos) int4.erase(0, colon);
    std::string steps = section(yaml, "steps");
    const bool has_mass = !section(yaml, "outputs").empty();
    size_t calls = 0;
    for (size_t at = 0; (at = steps.find("\n- ", at)) != std::string::npos; ++at) ++calls;

    Tensors state, results;
    Texts metadata;
    for (const char *part : {"cache", "scale"})
        if (const auto at = tensors.find(part); at != tensors.end()) state.insert(*at);
    for (size_t i = 0; i < calls; ++i) {
        const std::string prefix = std::to_string(i) + ".";
        Tensors inputs;  // the expected outputs are there, too: do not look
        for (const auto &[full, tensor] : tensors)
            if (full.compare(0, prefix.size(), prefix) == 0) inputs[full.substr(prefix.size())] = tensor;
        const Result result = operate(op, attributes, integers(int4), has_mass, inputs, state);
        if (!result.unsupported.empty()) {
            metadata[prefix + "unsupported"] = result.unsupported;
            break;
        }
        if (!result.error.empty()) metadata[prefix + "error"] = result.error;
        for (const auto &[output, tensor] : result.outputs) results[prefix + output] = tensor;
        for (const auto &[part, tensor] : state) results[prefix + part] = tensor;
    }
    write_results(argv[2], results, metadata);
}
