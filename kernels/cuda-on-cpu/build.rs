//! Compiles the CUDA kernels for the CPU: as they are, and with errors planted in copies of them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// An error planted in the kernels for one combination of types, to show that the tests see it.
struct Mutant {
    name: &'static str,
    types: &'static str,
    file: &'static str,
    /// What is there once.
    from: &'static str,
    to: &'static str,
}

/// Every combination of types, as in the names of the kernels.
const TYPES: [&str; 13] = [
    "f32_f32",
    "f32_f16",
    "f16_f32",
    "f16_f16",
    "i8_i8",
    "f32_i8_f32",
    "f32_i8_f16",
    "f16_i8_f32",
    "f16_i8_f16",
    "f32_i4_f32",
    "f32_i4_f16",
    "f16_i4_f32",
    "f16_i4_f16",
];

#[rustfmt::skip]
const MUTANTS: [Mutant; 17] = [
    mutant("wrong_shuffle_distance", "f16_i8_f16", "store.cuh", "__shfl_xor_sync(ALL_LANES, amax, distance)", "__shfl_xor_sync(ALL_LANES, amax, 2 * distance)"),
    mutant("group_maximum_within_a_lane_only", "f32_i8_f32", "store.cuh", "for (u32 distance = p.units_per_group.value / 2; distance > 0;", "for (u32 distance = 0; distance > 0;"),
    mutant("shuffle_in_a_branch", "f16_i8_f16", "store.cuh", "const Scale<T1> scale = scale_of<T1, T2>(amax);\n                    const Words", "if (place.active) { amax = __shfl_sync(ALL_LANES, amax, threadIdx.x % WARP); }\n                    const Scale<T1> scale = scale_of<T1, T2>(amax);\n                    const Words"),
    mutant("page_off_by_one", "f16_f16", "call.cuh", ": token / page_size;", ": (token + 1) / page_size;"),
    mutant("page_of_the_next_sequence", "f16_f16", "call.cuh", "p.cachestarts + b * p.max_p + page", "p.cachestarts + (b + 1) * p.max_p + page"),
    mutant("quotient_not_rounded_to_half", "f16_i8_f16", "quantize.cuh", "    return rounded<T>(quotient);", "    return quotient;"),
    mutant("product_not_rounded_to_half", "f32_i8_f16", "quantize.cuh", "bits_of<T1>(rounded<T3>(__fmul_rn(code, value_of<T3>(scale))))", "bits_of<T1>(__fmul_rn(code, value_of<T3>(scale)))"),
    mutant("times_the_reciprocal", "f32_i8_f32", "quantize.cuh", "    return rounded<T>(quotient);", "    return __fmul_rn(x, reciprocal);"),
    mutant("poison_hidden", "f16_i4_f16", "quantize.cuh", "scale.poisoned = amax >= INFINITY_OF<T1>;", "scale.poisoned = false;"),
    mutant("nibbles_swapped", "f16_i4_f16", "store.cuh", "low | high << 4", "high | low << 4"),
    mutant("every_lane_writes_the_scale", "f16_i4_f16", "store.cuh", "if (place.active && place.d == group * p.units_per_group.value)", "if (place.active)"),
    mutant("barrier_lost", "f32_f32", "call.cuh", "    __syncthreads();\n", ""),
    mutant("barrier_in_a_branch", "i8_i8", "call.cuh", "    __syncthreads();\n", "    if (warp != 1) {\n        __syncthreads();\n    }\n"),
    mutant("unaligned_access", "f16_f32", "access.cuh", "read<uint4>(at + 16 * i)", "read<uint4>(at + 8 * i)"),
    mutant("work_done_by_every_block", "i8_i8", "call.cuh", "static_cast<u64>(gridDim.x) * (BLOCK / WARP) * p.round", "static_cast<u64>(BLOCK / WARP) * p.round"),
    mutant("values_like_keys", "f16_f16", "load.cuh", "const i64 head = head_at(p.cache_strides, place) + kv * p.cache_strides.kv;\n                const i64 at", "const i64 head = head_at(p.cache_strides, place);\n                const i64 at"),
    mutant("heads_not_repeated", "f16_f16", "load.cuh", "(place.unit - place.d) * p.num_repeat + place.d;\n#pragma unroll", "place.unit;\n#pragma unroll"),
];

const fn mutant(
    name: &'static str,
    types: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
) -> Mutant {
    Mutant { name, types, file, from, to }
}

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let sources = Path::new("../src/cuda/kernel");
    println!("cargo::rerun-if-changed=shim");
    println!("cargo::rerun-if-changed={}", sources.display());

    let sanitize = env::var_os("CARGO_FEATURE_SANITIZE").is_some();
    let compile = |library: &str, sources: &Path, file: &str, defines: &[(&str, &str)], warnings: bool| {
        let mut build = cc::Build::new();
        // Each operation is rounded by itself, and pragmas for unrolling are the GPU's.
        build
            .cpp(true)
            .std("c++17")
            .opt_level(2)
            .flag("-ffp-contract=off")
            .flag("-Wno-unknown-pragmas")
            .include("shim");
        build.include(sources).file(Path::new("shim").join(file)).warnings(warnings).extra_warnings(warnings);
        if sanitize {
            build.flags(["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-fno-omit-frame-pointer"]);
        }
        for &(name, value) in defines {
            build.define(name, value);
        }
        build.compile(library);
    };
    if sanitize {
        // rustc links without the compiler's libraries, and the runtime must come before the C library: so it is linked
        // in.
        for argument in ["-Wl,--whole-archive", "-l:libasan.a", "-Wl,--no-whole-archive", "-l:libubsan.a", "-lstdc++"] {
            println!("cargo::rustc-link-arg-tests={argument}");
        }
    }

    let mut builds = String::from("/// The kernels as they are.\npub static FAITHFUL: [Build; 13] = [\n");
    let mut externs = String::from("unsafe extern \"C\" {\n");
    for types in TYPES {
        compile(types, sources, "kernels.cpp", &defines(types, types, types), true);
        entry(&mut builds, &mut externs, types, types, types);
    }
    let count = MUTANTS.len();
    write!(builds, "];\n\n/// The kernels with planted errors.\npub static MUTANTS: [Build; {count}] = [\n").ok();
    for Mutant { name, types, file, from, to } in MUTANTS {
        let folder = out.join(name);
        fs::create_dir_all(&folder)?;
        for source in fs::read_dir(sources)? {
            let source = source?.path();
            fs::copy(&source, folder.join(source.file_name().unwrap_or_default()))?;
        }
        let text = fs::read_to_string(folder.join(file))?;
        assert_eq!(text.matches(from).count(), 1, "{name}: {file} has not {from:?} once");
        fs::write(folder.join(file), text.replace(from, to))?;
        let symbol = format!("{types}_{name}");
        compile(name, &folder, "kernels.cpp", &defines(types, &symbol, &symbol), false);
        entry(&mut builds, &mut externs, name, types, &symbol);
    }
    builds.push_str("];\n");
    compile("arithmetic", sources, "arithmetic.cpp", &defines("f16_i8_f16", "arithmetic", "arithmetic"), true);
    // After those that need it.
    compile("shim", sources, "shim.cpp", &[], true);
    fs::write(out.join("builds.rs"), format!("{externs}}}\n\n{builds}"))
}

/// What `kernels.cpp` must know.
fn defines<'a>(types: &'static str, namespace: &'a str, symbol: &'a str) -> [(&'static str, &'a str); 5] {
    let element = |name: Option<&str>| match name {
        Some("f32") => "F32",
        Some("f16") => "F16",
        Some("i8") => "I8",
        Some("i4") => "I4",
        None => "None",
        Some(other) => unreachable!("{other}"),
    };
    let mut parts = types.split('_');
    [
        ("NAMESPACE", namespace),
        ("TYPES", symbol),
        ("VALUES", element(parts.next())),
        ("CELLS", element(parts.next())),
        ("SCALES", element(parts.next())),
    ]
}

/// Declares a build in the generated Rust.
fn entry(builds: &mut String, externs: &mut String, name: &str, types: &str, symbol: &str) {
    writeln!(externs, "    fn kvcache_launch_{symbol}(kernel: u32, launch: *const ShimLaunch) -> i32;").ok();
    writeln!(builds, "    Build {{ name: \"{name}\", types: \"{types}\", launch: kvcache_launch_{symbol} }},").ok();
}
