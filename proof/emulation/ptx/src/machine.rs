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

use std::cell::RefCell;
use std::collections::BTreeMap;

use thiserror::Error;

use crate::arithmetic::Lanes;
use crate::decode::{Access, CONSTANT, Code, Instruction, Kind, Register, Shuffle, Space};
use crate::memory::{Memory, Use};
use crate::shadow::{Conflict, GlobalShadow, Now, SharedShadow};

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
    /// Those of each warp, one warp behind the other.
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

    /// The lanes' addresses of so many bytes: all aligned.
    fn addresses(&mut self, mask: u32, access: &Access, bytes: u32) -> Result<Lanes, Fault> {
        let addresses = self.read(access.base, mask)?.map(|base| base.wrapping_add(access.offset));
        for lane in lanes(mask) {
            if !addresses[lane].is_multiple_of(bytes.into()) {
                let message = format!("accesses {bytes} bytes at {:#x}, which is no multiple of it", addresses[lane]);
                return self.fault(lane, message);
            }
        }
        if self.shape.counts && access.space != Space::Param {
            self.count(mask, access, &addresses, bytes);
        }
        Ok(addresses)
    }

    /// Checks an access of a lane: that the bytes are there, may be used so, and are used by no other thread now.
    fn check(&mut self, lane: usize, access: &Access, address: u64, bytes: u32, how: Use) -> Result<(), Fault> {
        let now = Now { joins: self.warps[self.w].joins, thread: self.thread(lane), ..self.now };
        let conflict = match access.space {
            Space::Shared if address.saturating_add(bytes.into()) > self.shared.len() as u64 => {
                return self.fault(lane, format!("{how:?} of {bytes} bytes at {address}, beyond shared memory"));
            }
            Space::Shared => match how {
                Use::Write => self.shared_shadow.write(address as usize, bytes, now),
                _ => self.shared_shadow.read(address as usize, bytes, now),
            },
            _ => match (self.memory.check(&mut self.region, address, bytes.into(), how), how) {
                (Err(message), _) => return self.fault(lane, message),
                (Ok(true), Use::Read) => self.global_shadow.read(address, bytes, now, false),
                (Ok(true), Use::ReadOnly) => self.global_shadow.read(address, bytes, now, true),
                (Ok(true), Use::Write) => self.global_shadow.write(address, bytes, now),
                (Ok(_), _) => Ok(()),
            },
        };
        conflict.or_else(|conflict| {
            let message = match conflict {
                Conflict::Uninitialized => "reads shared memory that is not written".to_owned(),
                Conflict::WithWrite(other) => format!("{how:?} of what thread {other} writes, in no order"),
                Conflict::WithRead(other) => format!("{how:?} of what thread {other} reads, in no order"),
                Conflict::WithReadOnly => "writes what is read through the read-only cache".to_owned(),
            };
            self.fault(lane, message)
        })
    }

    fn bytes(&self, access: &Access, address: u64) -> u64 {
        let mut word = [0; 8];
        let to = &mut word[..access.of.bytes() as usize];
        match access.space {
            Space::Shared => to.copy_from_slice(&self.shared[address as usize..][..to.len()]),
            // SAFETY: `check` has found the bytes in a region, which is valid: see `run`.
            _ => unsafe { self.memory.read(address, to) },
        }
        u64::from_le_bytes(word)
    }

    fn set_bytes(&mut self, access: &Access, address: u64, value: u64) {
        let word = &value.to_le_bytes()[..access.of.bytes() as usize];
        match access.space {
            Space::Shared => self.shared[address as usize..][..word.len()].copy_from_slice(word),
            // SAFETY: `check` has found the bytes in a region that may be written, which is valid: see `run`.
            _ => unsafe { self.memory.write(address, word) },
        }
    }

    fn load(&mut self, mask: u32, access: &Access, to: &[Register]) -> Result<(), Fault> {
        let (each, all) = (access.of.bytes(), access.of.bytes() * to.len() as u32);
        let addresses = self.addresses(mask, access, all)?;
        let how = if access.nc { Use::ReadOnly } else { Use::Read };
        let mut values = [[0; 32]; 4];
        for lane in lanes(mask) {
            let address = addresses[lane];
            if access.space == Space::Param {
                let parameters = self.shape.parameters.get(address as usize..).and_then(|at| at.get(..all as usize));
                let Some(parameters) = parameters else { return self.fault(lane, "reads beyond the parameters") };
                for (values, part) in values.iter_mut().zip(parameters.chunks(each as usize)) {
                    values[lane] = part.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
                }
                continue;
            }
            self.check(lane, access, address, all, how)?;
            for (i, values) in (0..).zip(&mut values[..to.len()]) {
                values[lane] = self.bytes(access, address + i * u64::from(each));
            }
        }
        to.iter().zip(&values).for_each(|(to, values)| self.write(*to, mask, values));
        Ok(())
    }

    fn store(&mut self, mask: u32, access: &Access, from: &[Register]) -> Result<(), Fault> {
        let (each, all) = (access.of.bytes(), access.of.bytes() * from.len() as u32);
        let addresses = self.addresses(mask, access, all)?;
        self.check_written(from, mask)?;
        for lane in lanes(mask) {
            self.check(lane, access, addresses[lane], all, Use::Write)?;
            for (i, &from) in (0..).zip(from) {
                self.set_bytes(access, addresses[lane] + i * u64::from(each), self.lanes(from)[lane]);
            }
        }
        Ok(())
    }

    fn compare_and_swap(
        &mut self,
        mask: u32,
        access: &Access,
        to: Register,
        numbers: [Register; 2],
    ) -> Result<(), Fault> {
        let addresses = self.addresses(mask, access, access.of.bytes())?;
        self.check_written(&numbers, mask)?;
        let mut before = [0; 32];
        for lane in lanes(mask) {
            self.check(lane, access, addresses[lane], access.of.bytes(), Use::Atomic)?;
            let [old, new] = numbers.map(|number| self.lanes(number)[lane]);
            before[lane] = self.bytes(access, addresses[lane]);
            if before[lane] == old & access.of.mask() {
                self.set_bytes(access, addresses[lane], new);
            }
        }
        self.write(to, mask, &before);
        Ok(())
    }

    /// Counts the sectors of an access to global memory, or the passes of one to shared memory.
    fn count(&mut self, mask: u32, access: &Access, addresses: &Lanes, bytes: u32) {
        let mut first: Vec<u64> = lanes(mask).map(|lane| addresses[lane]).collect();
        if access.space == Space::Global {
            first.sort_unstable();
            first.dedup();
            self.counts.sectors[1] += (first.len() as u64 * u64::from(bytes)).div_ceil(32);
            first.iter_mut().for_each(|address| *address /= 32);
            first.dedup();
            self.counts.sectors[0] += first.len() as u64;
            return;
        }
        // 8 bytes a lane are half a warp at once, 16 a quarter.
        for part in first.chunks(128 / bytes.max(4) as usize) {
            let mut words: Vec<_> = part.iter().flat_map(|at| at / 4..(at + u64::from(bytes)).div_ceil(4)).collect();
            words.sort_unstable();
            words.dedup();
            let mut banks = [0; 32];
            words.iter().for_each(|word| banks[(word % 32) as usize] += 1);
            self.counts.passes[0] += banks.into_iter().max().unwrap_or(0);
            self.counts.passes[1] += 1;
        }
    }

    /// Makes a join of a warp if all its lanes have come.
    fn join_warp(&mut self, active: u32, kind: &Kind) -> Result<(), Fault> {
        let (Kind::SyncWarp(needed) | Kind::Shuffle(_, [.., needed], _)) = *kind else { return Ok(()) };
        let warp = &self.warps[self.w];
        let is_here = |lane: &usize| warp.at[*lane] as usize == self.at;
        let here: u32 = lanes(warp.waiting).filter(is_here).map(|lane| 1 << lane).sum();
        let masks = self.read(needed, here)?;
        let mask = masks[active.trailing_zeros() as usize] as u32;
        if let Some(lane) = lanes(here).find(|&lane| masks[lane] as u32 != mask || mask >> lane & 1 == 0) {
            return self.fault(lane, "joins lanes of another mask");
        }
        if mask & !here != 0 {
            return Ok(());
        }
        match *kind {
            Kind::Shuffle(mode, from, to) => self.shuffle(mask, mode, from, to)?,
            // One of a part of the warp orders nothing here: no kernel has one.
            _ => self.warps[self.w].joins += u32::from(mask == u32::MAX),
        }
        let warp = &mut self.warps[self.w];
        (warp.ready, warp.waiting) = (warp.ready | mask, warp.waiting & !mask);
        self.put(mask, self.at as u32 + 1);
        Ok(())
    }

    fn shuffle(
        &mut self,
        mask: u32,
        mode: Shuffle,
        from: [Register; 4],
        [to, is_valid]: [Register; 2],
    ) -> Result<(), Fault> {
        self.check_written(&from, mask)?;
        let [value, argument, clamp, _] = from.map(|from| self.lanes(from));
        let (mut result, mut valid) = ([0; 32], [0; 32]);
        for lane in lanes(mask) {
            let (b, c) = (argument[lane] as usize & 31, clamp[lane] as usize);
            let segment = c >> 8 & 31;
            let (least, most) = (lane & segment, lane & segment | c & 31 & !segment);
            let (from, is_valid) = match mode {
                Shuffle::Up => (lane.wrapping_sub(b), lane >= most + b),
                Shuffle::Down => (lane + b, lane + b <= most),
                Shuffle::Xor => (lane ^ b, lane ^ b <= most),
                Shuffle::Index => (least | b & !segment, least | b & !segment <= most),
            };
            let from = if is_valid { from } else { lane };
            if mask >> from & 1 == 0 {
                return self.fault(lane, format!("shuffles from lane {from}, which is not in the mask"));
            }
            (result[lane], valid[lane]) = (value[from], is_valid.into());
        }
        self.write(to, mask, &result);
        self.write(is_valid, mask, &valid);
        Ok(())
    }

    /// Makes the barrier that all threads wait at; a fault if they wait at different ones, or have ended.
    fn join_block(&mut self) -> Result<(), Fault> {
        let waits = |warp: &Warp| lanes(warp.waiting).next().map(|lane| warp.at[lane]);
        let Some(place) = self.warps.iter().find_map(waits) else { return Ok(()) };
        let Instruction { line, kind, .. } = &self.code.instructions[place as usize];
        for (w, lane) in (0..self.warps.len()).flat_map(|w| (0..WARP as usize).map(move |lane| (w, lane))) {
            let warp = &self.warps[w];
            let has_ended = warp.waiting >> lane & 1 == 0;
            if has_ended || warp.at[lane] != place {
                (self.w, self.at) = (w, if has_ended { place } else { warp.at[lane] } as usize);
                let what = if has_ended { "has ended" } else { "waits here" };
                return self.fault(lane, format!("{what} while others wait in line {line}"));
            }
        }
        self.at = place as usize;
        let Kind::SyncBlock(reduced) = kind else {
            return self.fault(0, "waits for lanes of another mask");
        };
        if let Some([to, value]) = *reduced {
            let mut holds = 0;
            for w in 0..self.warps.len() {
                self.w = w;
                holds |= mask_of(self.read(value, u32::MAX)?);
            }
            for w in 0..self.warps.len() {
                self.w = w;
                self.write(to, u32::MAX, &[u64::from(holds != 0); 32]);
            }
        }
        self.now.interval += 1;
        for warp in &mut self.warps {
            (warp.ready, warp.waiting, warp.joins, warp.steps) = (u32::MAX, 0, 0, 0);
            warp.at = [place + 1; 32];
        }
        Ok(())
    }
}
