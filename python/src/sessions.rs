//! `Manager`'s sessions: sequences that are saved to a file and loaded again.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::arguments::Index;
use crate::id::Id;
use crate::manager::Manager;
use crate::memory::HostMemory;

#[pymethods]
impl Manager {
    /// Saves all sequences, in order of creation, with their rows, positions and known tokens: a safetensors file that
    /// replaces an earlier one once it is whole on disk.
    ///
    /// Raises ManagerError: step_open, update_pending (call `update` first), lost, io, memory_spec, and those of
    /// `HostMemory`.
    fn save(&self, py: Python<'_>, path: PathBuf, memory: &Bound<'_, HostMemory>) -> PyResult<()> {
        self.shared.with_memory(py, memory, |manager, memory| manager.save(path, memory))
    }

    /// Saves one sequence, as `save` saves all.
    ///
    /// Raises ManagerError: unknown_seq, and as `save`.
    fn save_seq(&self, py: Python<'_>, path: PathBuf, memory: &Bound<'_, HostMemory>, s: Id) -> PyResult<()> {
        self.shared.with_memory(py, memory, |manager, memory| manager.save_seq(path, memory, s.0))
    }

    /// Loads all saved sequences into a manager without any; their ids, in order. Mode, layout, page size and number of
    /// slots may be others than those of the cache that was saved. The whole file is checked before a slot is written.
    ///
    /// Raises ManagerError with the file's defect or difference as its kind (format, version, digest, truncated,
    /// trailing, dimensions, types, quantization, key_form, rope, fingerprint, row_index, io ...), not_empty,
    /// step_open, memory_spec, and those of `HostMemory`; CapacityError: no_room, no_slot.
    fn load(&self, py: Python<'_>, path: PathBuf, memory: &Bound<'_, HostMemory>) -> PyResult<Vec<u64>> {
        let seqs = self.shared.with_memory(py, memory, |manager, memory| manager.load(path, memory))?;
        Ok(seqs.into_iter().map(|seq| Id(seq).number()).collect())
    }

    /// Loads one saved sequence, by its index in the file, beside those that there are; its id.
    ///
    /// Raises ManagerError: no_sequence, and as `load`.
    #[pyo3(signature = (path, memory, index=Index(0)), text_signature = "($self, path, memory, index=0)")]
    fn load_seq(&self, py: Python<'_>, path: PathBuf, memory: &Bound<'_, HostMemory>, index: Index) -> PyResult<u64> {
        let seq = self.shared.with_memory(py, memory, |manager, memory| manager.load_seq(path, memory, index.0))?;
        Ok(Id(seq).number())
    }
}
