//! Compiles the CUDA kernels for the CPU: as they are, and copies with one bug each (mutants).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

mod mutants;

use kvcache_schema::TypeCombination;
use kvcache_schema::multi_head_cache_attention;
use mutants::{ATTENTION_MUTANTS, MUTANTS, Mutant};

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let sources = [Path::new("../../kernels/src/cuda/kernel"), Path::new("../../attention/src/cuda/kernel")];
    println!("cargo::rerun-if-changed=shim");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=mutants.rs");
    for folder in sources {
        println!("cargo::rerun-if-changed={}", folder.display());
    }

    let sanitize = env::var_os("CARGO_FEATURE_SANITIZE").is_some();
    // Kernels of which few calls are made, or which sanitizers slow down, are compiled faster than they would run.
    let compile = |library: &str, sources: &[&Path], file: &str, defines: &[(&str, &str)], is_mutant: bool| {
        let mut build = cc::Build::new();
        // No contraction to fused multiply-adds; pragmas for unrolling are for the GPU only.
        build
            .cpp(true)
            .std("c++17")
            .opt_level(if sanitize || is_mutant { 1 } else { 2 })
            .flag("-ffp-contract=off")
            .flag("-Wno-unknown-pragmas")
            .include("shim");
        build.includes(sources).file(Path::new("shim").join(file)).warnings(!is_mutant).extra_warnings(!is_mutant);
        if sanitize {
            build.flags(["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-fno-omit-frame-pointer"]);
        }
        for &(name, value) in defines {
            build.define(name, value);
        }
        build.compile(library);
    };
    if sanitize {
        // rustc links without the sanitizers' libraries, and their runtime must come before the C library.
        for argument in ["-Wl,--whole-archive", "-l:libasan.a", "-Wl,--no-whole-archive", "-l:libubsan.a", "-lstdc++"] {
            println!("cargo::rustc-link-arg-tests={argument}");
        }
    }

    let mut builds = Builds::default();
    let combinations: Vec<_> = TypeCombination::LEGAL.map(TypeCombination::name).into();
    let with_scores: Vec<_> = multi_head_cache_attention::combinations().map(TypeCombination::name).collect();
    // A sanitizer ends the process at a mutant's bug: no test of that build runs them.
    let mutants: [&[Mutant]; 2] = if sanitize { [&[], &[]] } else { [&MUTANTS, &ATTENTION_MUTANTS] };
    let suites = [
        ("FAITHFUL", "MUTANTS", combinations, mutants[0], "kernels.cpp", "launch"),
        ("ATTENTION", "ATTENTION_MUTANTS", with_scores, mutants[1], "attention.cpp", "launch_attention"),
    ];
    for (faithful, mutated, combinations, mutants, file, entry) in suites {
        builds.begin(faithful, "The kernels as they are", combinations.len());
        for types in &combinations {
            let namespace = format!("{entry}_{types}");
            compile(&namespace, &sources, file, &defines(types, &namespace, types), false);
            builds.add(types, types, &format!("{entry}_{types}"));
        }
        builds.end();
        builds.begin(mutated, "The kernels with one bug each", mutants.len());
        for Mutant { name, types, file: mutated, from, to } in mutants {
            let folder = out.join(name);
            fs::create_dir_all(&folder)?;
            for source in sources.into_iter().map(fs::read_dir).collect::<io::Result<Vec<_>>>()?.into_iter().flatten() {
                let source = source?.path();
                fs::copy(&source, folder.join(source.file_name().unwrap_or_default()))?;
            }
            let text = fs::read_to_string(folder.join(mutated))?;
            assert_eq!(text.matches(from).count(), 1, "{name}: {mutated} has not {from:?} once");
            fs::write(folder.join(mutated), text.replace(from, to))?;
            let symbol = format!("{types}_{name}");
            compile(name, &[&folder], file, &defines(types, &symbol, &symbol), true);
            builds.add(name, types, &format!("{entry}_{symbol}"));
        }
        builds.end();
    }
    compile("arithmetic", &sources, "arithmetic.cpp", &defines("f16_i8_f16", "arithmetic", "arithmetic"), false);
    compile("exponential", &sources, "exponential.cpp", &[("NAMESPACE", "exponential_")], false);
    // Last, so that it follows the objects that need it on the linker's command line.
    compile("shim", &sources, "shim.cpp", &[], false);
    fs::write(out.join("builds.rs"), format!("unsafe extern \"C\" {{\n{}}}\n{}", builds.externs, builds.lists))
}

/// What `kernels.cpp` must know.
fn defines<'a>(types: &str, namespace: &'a str, symbol: &'a str) -> [(&'static str, &'a str); 5] {
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

/// The generated Rust: declarations of what has been compiled, and lists of it.
#[derive(Default)]
struct Builds {
    externs: String,
    lists: String,
}

impl Builds {
    fn begin(&mut self, list: &str, about: &str, len: usize) {
        write!(self.lists, "\n/// {about}.\npub static {list}: [Build; {len}] = [\n").ok();
    }

    fn add(&mut self, name: &str, types: &str, entry: &str) {
        writeln!(self.externs, "    fn kvcache_{entry}(kernel: u32, launch: *const ShimLaunch) -> i32;").ok();
        writeln!(self.lists, "    Build {{ name: \"{name}\", types: \"{types}\", launch: kvcache_{entry} }},").ok();
    }

    fn end(&mut self) {
        self.lists.push_str("];\n");
    }
}
