//! A case: contenders that do the same work, or work of another size, in memory of the case's own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use pyo3::prelude::*;

use crate::manager::cells::Cells;
use crate::manager::copies::Copies;
use crate::manager::decode::Decode;
use crate::manager::pages::Pages;
use crate::manager::sessions::Sessions;
use crate::manager::shift::Shift;
use crate::refused;
use crate::team::Clocks;

/// Something that is measured.
pub(crate) trait Case {
    /// Runs the contenders once and checks their answers.
    ///
    /// # Errors
    /// What is wrong.
    fn check(&mut self) -> Result<(), String>;

    /// Runs a contender's operations once.
    ///
    /// # Errors
    /// If there is no such contender, or the manager refuses something.
    fn measure(&mut self, contender: &str) -> Result<Meter, String>;
}

/// The error of a case that is asked for a contender that it has not.
pub(crate) fn unknown<T>(contender: &str) -> Result<T, String> {
    Err(format!("the case has no contender {contender}"))
}

/// A case by its name and its numbers, whose answers are right.
#[pyclass(unsendable)]
pub(crate) struct ManagerCase(Box<dyn Case>);

#[pymethods]
impl ManagerCase {
    #[new]
    #[pyo3(signature = (name, *numbers))]
    fn new(name: &str, numbers: Vec<usize>) -> PyResult<Self> {
        let mut case = made(name, &numbers).map_err(refused)?;
        case.check().map_err(refused)?;
        Ok(Self(case))
    }

    /// What a contender's operations take: wall-clock nanoseconds, those in which the thread held a processor, heap
    /// allocations, and how many operations these were.
    fn measure(&mut self, contender: &str) -> PyResult<(u64, u64, u64, u64)> {
        let Meter { wall_ns, cpu_ns, allocations, operations } = self.0.measure(contender).map_err(refused)?;
        Ok((wall_ns, cpu_ns, allocations, operations))
    }
}

fn made(name: &str, numbers: &[usize]) -> Result<Box<dyn Case>, String> {
    Ok(match (name, numbers) {
        ("decode", &[batch, kvlen, max_t, max_pages, idle]) => {
            Box::new(Decode::new(batch, kvlen, max_t, max_pages, idle)?)
        }
        ("pages", &[pages]) => Box::new(Pages::new(pages)?),
        ("cells", &[cells, sequences]) => Box::new(Cells::new(cells, sequences)?),
        ("sessions", &[layout, bits]) => Box::new(Sessions::new(layout, bits)?),
        ("shift", &[layout, bits]) => Box::new(Shift::new(layout, bits)?),
        ("copies", &[layout, bits]) => Box::new(Copies::new(layout, bits)?),
        _ => return Err(format!("no case is {name} of {} numbers", numbers.len())),
    })
}

/// What some operations took, without the work between them that only prepares.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Meter {
    wall_ns: u64,
    cpu_ns: u64,
    allocations: u64,
    operations: u64,
}

impl Meter {
    /// Runs so many operations, and counts what they take.
    pub(crate) fn run<T>(&mut self, operations: usize, work: impl FnOnce() -> T) -> T {
        let (before, clocks) = (ALLOCATIONS.get(), Clocks::start());
        let result = work();
        let (wall_ns, cpu_ns) = clocks.elapsed();
        self.wall_ns += wall_ns;
        self.cpu_ns += cpu_ns;
        self.allocations += ALLOCATIONS.get() - before;
        self.operations += operations as u64;
        result
    }
}

thread_local! {
    /// How often the calling thread has allocated, in this library.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts. Reallocations are allocations too: `realloc` calls `alloc`.
struct Counting;

// SAFETY: all calls go to `System`, with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's layout, whose size is not 0.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        // SAFETY: `data` is from `System`, of this layout.
        unsafe { System.dealloc(data, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
