//! Compiles the CUDA kernels for the CPU: as they are and, with the feature `mutants`, copies with one bug each.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use kvcache_schema::{TypeCombination, multi_head_cache_attention};

/// The suites of kernels: the lists of their builds, the source that has them all, and what calls them.
const SUITES: [[&str; 4]; 3] = [
    ["FAITHFUL", "MUTANTS", "kernels", "launch"],
    ["ATTENTION", "ATTENTION_MUTANTS", "attention", "launch_attention"],
    ["ROWS", "ROWS_MUTANTS", "cache_rows", "launch_rows"],
];

const SOURCES: [&str; 3] =
    ["../../kernels/src/cuda/kernel", "../../attention/src/cuda/kernel", "../../kernels/src/cuda/rows/kernel"];

fn main() -> io::Result<()> {
    for path in ["build.rs", "mutants.txt", "shim"].into_iter().chain(SOURCES) {
        println!("cargo::rerun-if-changed={path}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let has = |feature: &str| env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    let mut generated = Generated::default();

    let combinations: Vec<_> = TypeCombination::all().map(TypeCombination::name).collect();
    let with_scores: Vec<_> = multi_head_cache_attention::all_combinations().map(TypeCombination::name).collect();
    let rows = vec!["rows".to_owned()];
    for ([list, _, source, entry], combinations) in SUITES.into_iter().zip([combinations, with_scores, rows]) {
        generated.begin(list, "The kernels as they are");
        // Two files, which are compiled at once.
        for (half, combinations) in combinations.chunks(combinations.len().div_ceil(2)).enumerate() {
            let mut text =
                format!("#include \"shim.hpp\"\n#define KERNELS \"{source}.cu\"\nnamespace {list}_{half} {{\n");
            for types in combinations {
                text += &kernels(source, types, types);
                generated.add(types, types, &format!("{entry}_{types}"));
            }
            let file = out.join(format!("{source}_{half}.cpp"));
            fs::write(&file, text + "}\n")?;
            generated.faithful.push(file);
        }
        generated.end();
    }
    let mutants = fs::read_to_string("mutants.txt")?;
    for [_, list, source, entry] in SUITES {
        generated.begin(list, "The kernels with one bug each");
        let of_suite = mutants.split("\n[").filter_map(|mutant| mutant.strip_prefix(list)?.strip_prefix(' '));
        for mutant in of_suite.filter(|_| has("MUTANTS")) {
            let (heading, lines) = mutant.split_once("]\n").ok_or(io::ErrorKind::InvalidData)?;
            let [name, types, file] = heading.split(' ').collect::<Vec<_>>()[..] else { panic!("{heading}") };
            let folder = mutated(&out.join(name), file, lines)?;
            let symbol = format!("{types}_{name}");
            let kernels = kernels(source, types, &symbol);
            let path = folder.join(source).with_extension("cu");
            let text = format!("#include \"shim.hpp\"\n#define KERNELS {path:?}\nnamespace {name} {{\n{kernels}}}\n");
            let file = out.join(name).with_extension("cpp");
            fs::write(&file, text)?;
            generated.add(name, types, &format!("{entry}_{symbol}"));
            generated.mutants.push(file);
        }
        generated.end();
    }
    fs::write(out.join("builds.rs"), format!("unsafe extern \"C\" {{\n{}}}\n{}", generated.externs, generated.lists))?;

    // Clippy links nothing.
    if env::var_os("RUSTC_WORKSPACE_WRAPPER").is_none() {
        compile(&generated, has("SANITIZE"));
    }
    Ok(())
}

/// A copy of the sources in `folder`, with the lines that begin with `-` replaced in `file` by those with `+`.
fn mutated(folder: &Path, file: &str, lines: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    for source in SOURCES.into_iter().map(fs::read_dir).collect::<io::Result<Vec<_>>>()?.into_iter().flatten() {
        let source = source?.path();
        fs::copy(&source, folder.join(source.file_name().unwrap_or_default()))?;
    }
    let [from, to] =
        ['-', '+'].map(|sign| lines.lines().filter_map(|line| line.strip_prefix(sign)).collect::<Vec<_>>());
    let (from, to) = (from.join("\n"), to.join("\n"));
    let text = fs::read_to_string(folder.join(file))?;
    assert_eq!(text.matches(&from).count(), 1, "{}: {file} has not {from:?} once", folder.display());
    fs::write(folder.join(file), text.replace(&from, &to))?;
    Ok(folder.to_owned())
}

/// The kernels of a source for a combination of types, under names that end in `symbol`.
fn kernels(source: &str, types: &str, symbol: &str) -> String {
    let element = |name: Option<&str>| name.map_or("None".to_owned(), str::to_uppercase);
    let mut parts = types.split('_');
    let [values, cells, scales] = [(); 3].map(|()| element(parts.next()));
    format!(
        "#define TYPES {symbol}\n#define VALUES {values}\n#define CELLS {cells}\n#define SCALES {scales}\n\
         #include \"{source}.inc\"\n#undef TYPES\n#undef VALUES\n#undef CELLS\n#undef SCALES\n"
    )
}

fn compile(generated: &Generated, sanitize: bool) {
    let mut build = cc::Build::new();
    // No contraction to fused multiply-adds; pragmas for unrolling are for the GPU only.
    build.cpp(true).std("c++17").debug(false).flag("-ffp-contract=off").flag("-Wno-unknown-pragmas");
    build.include("shim").includes(SOURCES);
    if sanitize {
        build.flags(["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-fno-omit-frame-pointer"]);
        // rustc links without the sanitizers' libraries, and their runtime must come before the C library.
        for argument in ["-Wl,--whole-archive", "-l:libasan.a", "-Wl,--no-whole-archive", "-l:libubsan.a", "-lstdc++"] {
            println!("cargo::rustc-link-arg-tests={argument}");
        }
    }
    // Kernels of which few calls are made, or which sanitizers slow down, are compiled faster than they would run.
    let mutants = build.clone().opt_level(1).warnings(false).files(&generated.mutants).compile_intermediates();
    let shim = ["arithmetic.cpp", "shim.cpp"].map(|file| Path::new("shim").join(file));
    build.opt_level(if sanitize { 1 } else { 2 }).warnings(true).extra_warnings(true);
    build.files(&generated.faithful).files(shim).objects(mutants).compile("emulation");
}

/// What is generated: C++ to be compiled, and Rust that declares and lists it.
#[derive(Default)]
struct Generated {
    faithful: Vec<PathBuf>,
    mutants: Vec<PathBuf>,
    externs: String,
    lists: String,
}

impl Generated {
    fn begin(&mut self, list: &str, about: &str) {
        write!(self.lists, "/// {about}.\npub static {list}: &[Build] = &[\n").ok();
    }

    fn add(&mut self, name: &str, types: &str, entry: &str) {
        writeln!(self.externs, "    fn kvcache_{entry}(kernel: u32, launch: *const ShimLaunch) -> i32;").ok();
        writeln!(self.lists, "    Build {{ name: \"{name}\", types: \"{types}\", launch: kvcache_{entry} }},").ok();
    }

    fn end(&mut self) {
        self.lists.push_str("];\n");
    }
}
