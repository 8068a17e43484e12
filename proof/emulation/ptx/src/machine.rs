//! Runs a launch: blocks one after the other, their warps in turns, and of a warp all lanes that are at one place.
//!
//! ```text
//! for each block:
//!     until all threads have ended:
//!         for each warp, in the order that is asked for:
//!             while lanes are ready: those at one place run until they part, meet others, wait or end
//!         all threads wait at one barrier: they go on
//! ```
//! A join of a warp's lanes is made when the last lane of its mask has come.

mod accesses;
mod joins;

use std::cell::RefCell;
use std::collections::BTreeMap;

use thiserror::Error;

use crate::arithmetic::Lanes;
use crate::code::{CONSTANT, Code, Instruction, Kind, Register};
use crate::memory::Memory;
use crate::shadow::{GlobalShadow, Now, SharedShadow};

const WARP: u32 = 32;

/// Instructions that a warp may run between two barriers of its block before it is taken not to end.
const MOST_STEPS: u64 = 1 << 26;

/// The order of warps between two barriers, and of a warp's lanes that are at different places.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Forward,
    Backward,
    Random(u32),
}

/// A violation of the rules for kernels, such as an access outside of all memory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{kernel}, line {line}, block {block}, thread {thread}: {message}")]
pub struct Fault {
    pub kernel: String,
    /// Of the module's text.
    pub line: u32,
    pub block: u32,
    pub thread: u32,
    pub message: String,
}

/// What a launch has done: the same each time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions of warps by their full names.
    pub instructions: BTreeMap<String, u64>,
    /// Sectors of 32 bytes that the warps' accesses to global memory touch, and how many their bytes would fill.
    pub sectors: [u64; 2],
    /// Passes over the banks of shared memory, and how many there would be without conflicts.
    pub passes: [u64; 2],
}

struct Warp {
    /// Where each lane is.
    at: [u32; WARP as usize],
    ready: u32,
    waiting: u32,
    /// Which lanes have written each register.
    written: Vec<u32>,
    joins: u32,
    steps: u64,
}

/// A launch's grid and block, and its parameters' bytes.
#[derive(Debug, Clone, Copy)]
pub struct Shape<'a> {
    pub grid: u32,
    pub block: u32,
    pub parameters: &'a [u8],
    pub order: Order,
    /// Whether anything is counted.
    pub counts: bool,
}

/// Runs a launch of a kernel on memory.
///
/// # Errors
/// [`Fault`].
///
/// # Safety
/// The memory's regions are valid for reads and, where they may be written, for writes, and nothing else uses them.
pub unsafe fn run(code: &Code, memory: &Memory, shape: Shape<'_>) -> Result<Counts, Fault> {
    thread_local! {
        /// The registers of earlier launches, whose memory is used again.
        static REGISTERS: RefCell<Vec<Lanes>> = const { RefCell::new(Vec::new()) };
    }
    let mut registers = REGISTERS.take();
    let warps = shape.block.div_ceil(WARP) as usize;
    registers.resize(registers.len().max(warps * code.registers.len()), [0; 32]);
    let mut machine = Machine {
        code,
        memory,
        shape,
        registers,
        warps: Vec::new(),
        shared: vec![0; code.shared_bytes],
        shared_shadow: SharedShadow::new(code.shared_bytes),
        global_shadow: GlobalShadow::default(),
        now: Now { interval: 0, block_began: 0, joins: 0, thread: 0 },
        block: 0,
        w: 0,
        at: 0,
        executed: vec![0; code.instructions.len()],
        counts: Counts::default(),
        random: if let Order::Random(seed) = shape.order { u64::from(seed) << 1 | 1 } else { 0 },
        region: 0,
    };
    let fits = shape.parameters.len() >= code.parameter_bytes && shape.block.is_multiple_of(WARP);
    let mut done = if fits { Ok(()) } else { machine.fault(0, "other parameters, or a block of no whole warps") };
    for block in 0..shape.grid {
        done = done.and_then(|()| machine.run_block(block));
    }
    REGISTERS.set(std::mem::take(&mut machine.registers));
    done.map(|()| if shape.counts { machine.counts() } else { Counts::default() })
}

struct Machine<'a> {
    code: &'a Code,
    memory: &'a Memory,
    shape: Shape<'a>,
    /// The registers of each warp, one warp behind the other.
    registers: Vec<Lanes>,
    warps: Vec<Warp>,
    shared: Vec<u8>,
    shared_shadow: SharedShadow,
    global_shadow: GlobalShadow,
    now: Now,
    block: u32,
    /// The warp that runs, and its instruction.
    w: usize,
    at: usize,
    /// How often warps have run each instruction.
    executed: Vec<u64>,
    counts: Counts,
    random: u64,
    /// The region of the last access.
    region: usize,
}

/// The lanes of a mask.
fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < WARP).then_some(lane as usize)
    })
}

/// The lanes whose predicate holds.
fn mask_of(predicate: &Lanes) -> u32 {
    (0..32).map(|i| ((predicate[i] & 1) as u32) << i).sum()
}

impl<'a> Machine<'a> {
    fn counts(self) -> Counts {
        let mut counts = self.counts;
        let (mut line, executed) = (0, self.code.instructions.iter().zip(self.executed));
        // What makes one instruction of PTX is in one line.
        for (instruction, count) in
            executed.filter(|(instruction, _)| std::mem::replace(&mut line, instruction.line) != instruction.line)
        {
            if count > 0 {
                *counts.instructions.entry(self.code.names[instruction.name as usize].clone()).or_default() += count;
            }
        }
        counts
    }

    /// A violation by a lane of the warp that runs.
    fn fault<T>(&self, lane: usize, message: impl Into<String>) -> Result<T, Fault> {
        let line = self.code.instructions[self.at].line;
        let (kernel, thread) = (self.code.kernel.clone(), self.thread(lane));
        Err(Fault { kernel, line, block: self.block, thread, message: message.into() })
    }

    fn thread(&self, lane: usize) -> u32 {
        self.w as u32 * WARP + lane as u32
    }

    fn next_random(&mut self) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize
    }

    fn run_block(&mut self, block: u32) -> Result<(), Fault> {
        self.block = block;
        self.now.interval += 1;
        self.now.block_began = self.now.interval;
        // Shared memory begins with arbitrary contents.
        self.shared.fill(0xa5);
        let count = self.code.registers.len();
        self.warps.clear();
        for w in 0..self.shape.block / WARP {
            let lane: Lanes = std::array::from_fn(|lane| lane as u64);
            let special =
                [lane.map(|lane| lane + u64::from(w * WARP)), [block.into(); 32], [self.shape.grid.into(); 32]];
            let mut written = vec![0; count];
            written[..special.len()].fill(u32::MAX);
            self.registers[w as usize * count..][..special.len()].copy_from_slice(&special);
            self.warps.push(Warp { at: [0; 32], ready: u32::MAX, waiting: 0, written, joins: 0, steps: 0 });
        }
        let mut order: Vec<_> = (0..self.warps.len()).collect();
        loop {
            match self.shape.order {
                Order::Forward => (),
                Order::Backward => order.sort_by_key(|&w| std::cmp::Reverse(w)),
                Order::Random(_) => (1..order.len()).for_each(|i| order.swap(i, self.next_random() % (i + 1))),
            }
            for &w in &order {
                self.w = w;
                self.run_warp()?;
            }
            if self.warps.iter().all(|warp| warp.waiting == 0) {
                return Ok(());
            }
            self.join_block()?;
        }
    }

    /// Runs a warp's lanes until none is ready.
    fn run_warp(&mut self) -> Result<(), Fault> {
        while self.warps[self.w].ready != 0 {
            let Warp { at, ready, .. } = self.warps[self.w];
            let mut places: Vec<_> = lanes(ready).map(|lane| at[lane]).collect();
            places.sort_unstable();
            places.dedup();
            let place = match self.shape.order {
                Order::Forward => places[0],
                Order::Backward => places[places.len() - 1],
                Order::Random(_) => places[self.next_random() % places.len()],
            };
            places.retain(|&other| other != place);
            let mask = lanes(ready).filter(|&lane| at[lane] == place).map(|lane| 1 << lane).sum();
            self.run_lanes(place, mask, &places)?;
        }
        Ok(())
    }

    /// Runs lanes that are at one place until they part, wait, end, or come to one of the places of others.
    fn run_lanes(&mut self, mut place: u32, mask: u32, others: &[u32]) -> Result<(), Fault> {
        let code = self.code;
        // Lanes that are behind go first, so that they meet again; those that are ahead only where the order says so.
        let first_other = others.first().filter(|_| self.shape.order == Order::Forward);
        loop {
            if first_other.is_some_and(|&other| place >= other) || others.contains(&place) {
                self.put(mask, place);
                return Ok(());
            }
            self.at = place as usize;
            let Instruction { guard, kind, .. } = &code.instructions[self.at];
            self.executed[self.at] += 1;
            let warp = &mut self.warps[self.w];
            warp.steps += 1;
            if warp.steps > MOST_STEPS {
                return self.fault(0, "does not end");
            }
            let active = match *guard {
                None => mask,
                Some((guard, negated)) => {
                    let holds = mask_of(self.read(guard, mask)?);
                    mask & if negated { !holds } else { holds }
                }
            };
            match kind {
                _ if active == 0 => {
                    place += 1;
                    continue;
                }
                Kind::Branch(to) if active == mask => {
                    place = *to;
                    continue;
                }
                Kind::Branch(to) => self.put(active, *to),
                Kind::Exit => self.warps[self.w].ready &= !active,
                kind @ (Kind::SyncWarp(_) | Kind::Shuffle(..) | Kind::SyncBlock(_)) => {
                    self.put(active, place);
                    let warp = &mut self.warps[self.w];
                    (warp.ready, warp.waiting) = (warp.ready & !active, warp.waiting | active);
                    self.join_warp(active, kind)?;
                    // All go on at once, as they do but where they have parted.
                    if self.warps[self.w].ready == mask && active == mask {
                        place += 1;
                        continue;
                    }
                }
                kind => {
                    self.step(kind, active)?;
                    place += 1;
                    continue;
                }
            }
            self.put(mask & !active, place + 1);
            return Ok(());
        }
    }

    /// Runs an instruction after which the next one follows.
    fn step(&mut self, kind: &Kind, mask: u32) -> Result<(), Fault> {
        match kind {
            Kind::Compute(compute, to, from) => {
                let mut result = [0; 32];
                self.check_written(from, mask)?;
                compute(&mut result, from.map(|from| self.lanes(from)));
                self.write(*to, mask, &result);
            }
            Kind::Load(access, to) => self.load(mask, access, to)?,
            Kind::Store(access, from) => self.store(mask, access, from)?,
            Kind::CompareAndSwap(access, to, numbers) => self.compare_and_swap(mask, access, *to, *numbers)?,
            _ => (),
        }
        Ok(())
    }

    fn put(&mut self, mask: u32, place: u32) {
        lanes(mask).for_each(|lane| self.warps[self.w].at[lane] = place);
    }

    fn lanes(&self, register: Register) -> &Lanes {
        match register & CONSTANT {
            0 => &self.registers[self.w * self.code.registers.len() + register as usize],
            _ => &self.code.constants[(register ^ CONSTANT) as usize],
        }
    }

    fn check_written(&self, registers: &[Register], mask: u32) -> Result<(), Fault> {
        for &register in registers.iter().filter(|register| **register & CONSTANT == 0) {
            let missing = mask & !self.warps[self.w].written[register as usize];
            if missing != 0 {
                let name = &self.code.registers[register as usize];
                let message = format!("reads {name}, which it has not written");
                return self.fault(missing.trailing_zeros() as usize, message);
            }
        }
        Ok(())
    }

    fn read(&self, register: Register, mask: u32) -> Result<&Lanes, Fault> {
        self.check_written(&[register], mask)?;
        Ok(self.lanes(register))
    }

    fn write(&mut self, register: Register, mask: u32, values: &Lanes) {
        self.warps[self.w].written[register as usize] |= mask;
        let to = &mut self.registers[self.w * self.code.registers.len() + register as usize];
        match mask {
            u32::MAX => *to = *values,
            _ => lanes(mask).for_each(|lane| to[lane] = values[lane]),
        }
    }
}
