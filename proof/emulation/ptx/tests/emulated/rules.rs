//! What the interpreter finds, and what it allows: small kernels, most of which break one rule.

use kvcache_emulation_ptx::{Access, Counts, DeviceMemory, Fault, Memory, Order, Shape, kernels};

/// The words that the kernels read and write.
const WORDS: usize = 64;

/// Runs a kernel of two warps with these statements, which have the address of 64 words in `%rd1` and their thread in
/// `%r1`, and `%rd2` is the address of the thread's own word. In the order of the text the first statement is line 17.
fn run_in(order: Order, grid: u32, body: &str) -> Result<(Vec<u32>, Counts), Fault> {
    run_on(Access::Any, order, grid, body)
}

fn run_on(access: Access, order: Order, grid: u32, body: &str) -> Result<(Vec<u32>, Counts), Fault> {
    let ptx = format!(
        ".version 8.4
.target sm_75
.address_size 64
.shared .align 8 .b8 shared[256];
.visible .entry kernel(
    .param .u64 kernel_param_0
)
{{
    .reg .pred %p<4>;
    .reg .b16 %rs<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    .reg .f32 %f<8>;
    ld.param.u64 %rd1, [kernel_param_0]; mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4; add.s64 %rd2, %rd1, %rd3;
    mov.u64 %rd4, shared; add.s64 %rd5, %rd4, %rd3;
    {body}
    ret;
}}
"
    );
    let kernels = kernels(&ptx, false).unwrap_or_else(|error| panic!("{error}\n{ptx}"));
    let words: Vec<u8> = (0..WORDS as u32).flat_map(u32::to_le_bytes).collect();
    let memory = DeviceMemory::of(&words);
    let parameters = memory.address().to_le_bytes();
    let shape = Shape { grid, block: 64, parameters: &parameters, order, counts: true };
    let regions = Memory::new([memory.region(access)]);
    // SAFETY: the region lives, and nobody else uses it.
    let counts = unsafe { kvcache_emulation_ptx::run(&kernels["kernel"], &regions, shape) }?;
    let words = memory.bytes().as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    Ok((words, counts))
}

fn run(body: &str) -> Result<Vec<u32>, Fault> {
    run_in(Order::Forward, 1, body).map(|(words, _)| words)
}

/// The statements break a rule in this line, which the message names.
#[track_caller]
fn finds(line: u32, message: &str, body: &str) {
    for order in [Order::Forward, Order::Backward, Order::Random(3)] {
        let fault = run_in(order, 1, body).expect_err(message);
        assert!(fault.line == line && fault.message.contains(message), "{fault}, expected line {line}: {message}");
    }
}

#[test]
fn accesses_outside_of_memory() {
    finds(17, "outside of all memory", "ld.global.u32 %r2, [%rd2+4];");
    finds(17, "no multiple", "ld.global.u32 %r2, [%rd2+2];");
    finds(17, "beyond shared memory", "st.shared.u32 [%rd5+4], %r1;");
    finds(17, "no multiple", "st.shared.v2.u32 [%rd5], {%r1, %r1};");
}

#[test]
fn accesses_that_memory_is_not_for() {
    let [load, store] = ["ld.global.nc.u32 %r2, [%rd2];", "st.global.u32 [%rd2], %r1;"];
    let swap = "atom.global.cas.b64 %rd7, [%rd1], 0, %rd1;";
    for (access, allowed) in [(Access::Read, &[load][..]), (Access::Write, &[load, store]), (Access::Atomic, &[swap])] {
        for body in [load, store, swap] {
            let done = run_on(access, Order::Forward, 1, body);
            let is_refused = done.is_err_and(|fault| fault.message.contains("of memory that is for"));
            assert!(is_refused != allowed.contains(&body), "{body} of memory for {access:?}");
        }
    }
}

#[test]
fn what_is_not_written() {
    finds(
        18,
        "reads %r3, which it has not written",
        "setp.lt.u32 %p1, %r1, 63;\n@%p1 mov.u32 %r3, 1; st.global.u32 [%rd2], %r3;",
    );
    finds(18, "not written", "st.shared.u8 [%rd5], %r1;\nld.shared.u32 %r2, [%rd5];");
    finds(17, "not written", "ld.shared.u32 %r2, [shared+8];");
    // A block does not see what the one before it has written.
    let body =
        "mov.u32 %r2, %ctaid.x; setp.eq.s32 %p1, %r2, 0;\n@%p1 st.shared.u32 [%rd5], %r1; ld.shared.u32 %r3, [%rd5];";
    assert!(run(body).is_ok());
    assert!(run_in(Order::Forward, 2, body).is_err_and(|fault| (fault.line, fault.block) == (18, 1)));
}

#[test]
fn races_in_shared_memory() {
    let read =
        "xor.b32 %r2, %r1, DISTANCE; mul.wide.u32 %rd6, %r2, 4; add.s64 %rd6, %rd4, %rd6;\nld.shared.u32 %r3, [%rd6];";
    let other = |distance: &str, order: &str| {
        format!("st.shared.u32 [%rd5], %r1; {order} {}", read.replace("DISTANCE", distance))
    };
    // Either a thread reads what is not there yet, or what another writes.
    for distance in ["1", "32"] {
        assert!(run(&other(distance, "")).is_err_and(|fault| fault.line == 18));
        assert!(run(&other(distance, "bar.sync 0;")).is_ok());
    }
    assert!(run(&other("1", "bar.warp.sync -1;")).is_ok());
    finds(18, "", &other("32", "bar.warp.sync -1;"));
    // A write after another thread's read.
    let late = |order: &str| format!("{}\n{order} st.shared.u32 [%rd5], %r3;", other("1", "bar.sync 0;"));
    finds(19, "reads, in no order", &late(""));
    assert!(run(&late("bar.warp.sync -1;")).is_ok());
    // Parts of a word are apart.
    assert!(run("cvt.u64.u32 %rd6, %r1; add.s64 %rd6, %rd4, %rd6; st.shared.u8 [%rd6], %r1;").is_ok());
    finds(17, "writes, in no order", "st.shared.u32 [shared], %r1;");
}

#[test]
fn races_in_global_memory() {
    finds(17, "writes, in no order", "st.global.u32 [%rd1], %r1;");
    let another =
        "xor.b32 %r2, %r1, 32; mul.wide.u32 %rd6, %r2, 4; add.s64 %rd6, %rd1, %rd6; ld.global.u32 %r3, [%rd6];";
    assert!(
        run(&format!("{another}\nst.global.u32 [%rd2], %r1;"))
            .is_err_and(|fault| fault.message.contains("in no order"))
    );
    assert!(run(&format!("{another} bar.sync 0; st.global.u32 [%rd2], %r1;")).is_ok());
    let own = "ld.global.u32 %r2, [%rd2]; add.s32 %r2, %r2, 1; st.global.u32 [%rd2], %r2;";
    assert_eq!(run(own).unwrap()[63], 64);
    // No barrier orders two blocks.
    assert!(run_in(Order::Forward, 2, own).is_err());
    assert!(run_in(Order::Forward, 2, "bar.sync 0; ld.global.u32 %r2, [%rd2]; bar.sync 0;").is_ok());
    finds(18, "read-only cache", "ld.global.nc.u32 %r2, [%rd2];\nst.global.u32 [%rd2], %r1;");
    finds(18, "writes, in no order", "st.global.u32 [%rd2], %r1; bar.sync 0;\nld.global.nc.u32 %r2, [%rd2];");
    // One of all threads finds the number as it was.
    let swaps = "cvt.u64.u32 %rd6, %r1; add.s64 %rd6, %rd6, 5; atom.global.cas.b64 %rd7, [%rd1], 0x100000000, %rd6;";
    let (words, _) = run_in(Order::Random(1), 2, swaps).unwrap();
    assert!((5..69).contains(&words[0]) && words[1] == 0);
}

#[test]
fn joins_that_not_all_reach() {
    finds(18, "has ended", "setp.gt.u32 %p1, %r1, 40;\n@%p1 ret; bar.sync 0;");
    finds(18, "", "setp.gt.u32 %p1, %r1, 40;\n@%p1 bar.sync 0;");
    finds(18, "", "setp.gt.u32 %p1, %r1, 40;\n@%p1 shfl.sync.bfly.b32 %r2|%p2, %r1, 1, 31, -1;");
    finds(17, "another mask", "shfl.sync.idx.b32 %r2|%p2, %r1, 0, 31, 15;");
    finds(17, "does not end", "LOOP: bra LOOP;");
}

#[test]
fn lanes_at_different_places_meet() {
    let body = "and.b32 %r2, %r1, 3; mov.u32 %r3, 0;
        LOOP: add.s32 %r3, %r3, %r1; sub.s32 %r2, %r2, 1; setp.ge.s32 %p1, %r2, 0; @%p1 bra LOOP;
        shfl.sync.up.b32 %r4|%p2, %r3, 1, 0, -1; @!%p2 mov.u32 %r4, 7;
        bar.red.or.pred %p3, 0, %p2; selp.u32 %r5, 1000, 0, %p3; add.s32 %r4, %r4, %r5; st.global.u32 [%rd2], %r4;";
    let before =
        |thread: u32| if thread.is_multiple_of(32) { 1007 } else { 1000 + (thread - 1) * ((thread - 1) % 4 + 1) };
    for order in [Order::Forward, Order::Backward, Order::Random(5)] {
        assert_eq!(run_in(order, 1, body).unwrap().0, (0..64).map(before).collect::<Vec<_>>());
    }
}

#[test]
fn a_call_has_parameters_labels_and_registers_of_its_own() {
    let ptx = "
.func twice(.param .b64 twice_param_0, .param .b32 twice_param_1)
{
    .reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [twice_param_0]; ld.param.u32 %r1, [twice_param_1];
    setp.eq.s32 %p1, %r1, 0; @%p1 bra $END; add.s32 %r2, %r1, %r1; st.global.u32 [%rd1], %r2;
$END: ret;
}
.visible .entry kernel(.param .u64 to, .param .u32 more)
{
    .reg .b32 %r<9>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [to]; ld.param.u32 %r5, [more]; mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 8; add.s64 %rd2, %rd1, %rd2; add.s32 %r2, %r1, %r5; mov.u32 %r3, 7;
    { .param .b64 param0; st.param.b64 [param0+0], %rd2; .param .b32 param1; st.param.b32 [param1+0], %r1;
    call.uni twice, (param0, param1); }
    add.s64 %rd2, %rd2, 4; st.global.u32 [%rd2], %r3;
    { .param .b64 param0; st.param.b64 [param0+0], %rd2; .param .b32 param1; st.param.b32 [param1+0], %r2;
    call.uni twice, (param0, param1); }
}";
    let kernel = &kernels(ptx, false).unwrap()["kernel"];
    let memory = DeviceMemory::of(&[0; 8 * WORDS]);
    let parameters = [&memory.address().to_le_bytes()[..], &100u32.to_le_bytes()].concat();
    let shape = Shape { grid: 1, block: 64, parameters: &parameters, order: Order::Forward, counts: false };
    // SAFETY: the region lives, and nobody else uses it.
    unsafe { kvcache_emulation_ptx::run(kernel, &Memory::new([memory.region(Access::Any)]), shape) }.unwrap();
    let words: Vec<_> = memory.bytes().as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    assert_eq!(words, (0..64).flat_map(|i| [2 * i, 200 + 2 * i]).collect::<Vec<_>>());
}

#[test]
fn unknown_instructions_name_their_line() {
    for (text, what) in [
        ("wmma.load.a.sync %r1;", "unknown"),
        ("add.s32 %r1, %r99, 1;", "%r99"),
        ("add.cc.s32 %r1, %r1, 1;", "unknown"),
    ] {
        let ptx = format!(".visible .entry kernel()\n{{\n.reg .b32 %r<4>;\n{text}\n}}\n");
        let error = kernels(&ptx, false).unwrap_err();
        assert!(error.line == 4 && error.message.contains(what), "{error}");
    }
}

#[test]
fn counts() {
    let (_, counts) = run_in(Order::Forward, 1, "ld.global.u32 %r2, [%rd2];").unwrap();
    assert_eq!((counts.instructions["ld.global.u32"], counts.sectors, counts.passes), (2, [8, 8], [0, 0]));
    // Every fourth word: half of a sector for each; and two words in each of eight banks.
    let body = "and.b32 %r2, %r1, 15; mul.wide.u32 %rd6, %r2, 16; add.s64 %rd7, %rd1, %rd6; ld.global.u32 %r3, [%rd7];
        add.s64 %rd6, %rd4, %rd6; setp.lt.u32 %p1, %r1, 16; @%p1 st.shared.u32 [%rd6], %r3;";
    let (_, counts) = run_in(Order::Forward, 1, body).unwrap();
    assert_eq!((counts.sectors, counts.passes), ([16, 4], [2, 1]));
}

/// What the first thread gets in `%r2`.
#[test]
fn values() {
    let values = [
        ("bfi.b32 %r2, 0xf, 0, 4, 4;", 0xf0),
        ("prmt.b32 %r2, 0x44332211, 0x88776655, 0x7531;", 0x8866_4422),
        ("prmt.b32 %r2, 0x80, 0, 0x0008;", 0x8080_80ff),
        ("mul.hi.u32 %r2, -2, 3;", 2),
        ("div.s64 %rd6, -7, 2; cvt.u32.u64 %r2, %rd6;", 0xffff_fffd),
        ("rem.s64 %rd6, -7, 2; cvt.u32.u64 %r2, %rd6;", 0xffff_ffff),
        ("shr.s64 %rd6, -8, 70; cvt.u32.u64 %r2, %rd6;", 0xffff_ffff),
        ("shr.u32 %r2, -8, 32;", 0),
        ("shl.b32 %r2, -8, 1;", 0xffff_fff0),
        ("cvt.s32.s8 %r2, 0x80;", 0xffff_ff80),
        ("fma.rn.f32 %r2, 0f3F800800, 0f3F800800, 0fBF800000;", 0x3a00_0400),
        ("cvt.rn.f16.f32 %r2, 0f3F801000;", 0x3c00),
        ("cvt.rz.f16.f32 %r2, 0f477FFFFF;", 0x7bff),
        ("add.rn.f16x2 %r2, 0x3c003c00, 0x40003c00;", 0x4200_4000),
        // 2049 and 2^-10: halfway between two float16, and a little more.
        ("add.rn.f16x2 %r2, 0x6800, 0x3c01;", 0x6801),
        ("mul.rn.f16x2 %r2, 0x3c004000, 0x40004200;", 0x4000_4600),
        ("max.f32 %r2, 0f80000000, 0f00000000;", 0),
        ("max.f32 %r2, 0f7FC00000, 0fBF800000;", 0xbf80_0000),
        ("setp.ltu.f32 %p1, 0f7FC00000, 0f00000000; selp.u32 %r2, 1, 0, %p1;", 1),
        ("setp.lt.s64 %p1, -1, 0; selp.u32 %r2, 1, 0, %p1;", 1),
        ("setp.lt.u64 %p1, -1, 0; selp.u32 %r2, 1, 0, %p1;", 0),
        ("shfl.sync.down.b32 %r2|%p1, %r1, 1, 31, -1;", 1),
        ("shfl.sync.idx.b32 %r2|%p1, %r1, 5, 31, -1;", 5),
        ("mov.b64 %rd6, {%r1, 9}; mov.b64 {%r3, %r2}, %rd6;", 9),
    ];
    for (statements, value) in values {
        let words = run(&format!("{statements} st.global.u32 [%rd2], %r2;")).unwrap();
        assert!(words[0] == value, "{statements} gives {:#x}, expected {value:#x}", words[0]);
    }
}
