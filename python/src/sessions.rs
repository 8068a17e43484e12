//! `Manager`'s sessions: sequences that are saved to a file and loaded again.

use std::ops::Range;
use std::path::PathBuf;

use kvcache_manager::Error;
use pyo3::prelude::*;

use crate::arguments::Number;
use crate::id::Id;
use crate::manager::Manager;
use crate::memory::HostMemory;
use crate::refusal::Result;

#[pymethods]
impl Manager {
    /// Saves all sequences, in order of creation, with their rows, positions and known tokens: a safetensors file that
    /// replaces an earlier one once it is whole on disk.
    ///
    /// Raises ManagerError: step_open, update_pending (call `update` first), lost, io, memory_spec, and as
    /// `HostMemory`.
    fn save(&self, py: Python<'_>, path: PathBuf, memory: &Bound<'_, HostMemory>) -> Result<()> {
        self.shared.with_memory(py, memory, |manager, memory| manager.save(path, memory))
    }

    /// Saves one sequence, as `save` saves all. Other threads may use the manager meanwhile, for other sequences.
    ///
    /// Raises ManagerError: unknown_seq, changed (the sequence was, meanwhile), and as `save`.
    fn save_seq(&self, py: Python<'_>, path: PathBuf, memory: &Bound<'_, HostMemory>, s: Id) -> Result<()> {
        memory.get().arrays(py, &self.shared.spec)?;
        let saving = self.shared.with(py, |manager| Ok(manager.saving(s.0)?))?;
        let memory = memory.clone().unbind();
        let read = |rows: Range<usize>, bytes: &mut [u8]| {
            Python::attach(|py| {
                self.shared.with_memory(py, memory.bind(py), |manager, memory| {
                    match manager.read_saving(&saving, rows.clone(), bytes, memory) {
                        Err(Error::UpdatePending { .. }) => {
                            manager.update(memory)?;
                            manager.read_saving(&saving, rows, bytes, memory)
                        }
                        read => read,
                    }
                })
            })
        };
        py.detach(|| saving.write(path, read))
    }

    /// Loads all saved sequences into a manager without any; their ids, in order. Mode, layout, page size and number of
    /// slots may be others than the saved cache has. The file is read once: where it is damaged, nothing is loaded.
    ///
    /// Raises ManagerError with the file's defect or difference as its kind (format, version, digest, truncated,
    /// trailing, dimensions, types, quantization, key_form, rope, fingerprint, row_index, io ...), not_empty,
    /// step_open, memory_spec, and as `HostMemory`; CapacityError: no_room, no_slot.
    fn load(&self, py: Python<'_>, path: PathBuf, memory: &Bound<'_, HostMemory>) -> Result<Vec<u64>> {
        let seqs = self.shared.with_memory(py, memory, |manager, memory| manager.load(path, memory))?;
        Ok(seqs.into_iter().map(|seq| Id(seq).number()).collect())
    }

    /// Loads one saved sequence, by its index in the file, beside those that there are; its id.
    ///
    /// Raises ManagerError: no_sequence, and as `load`.
    #[pyo3(signature = (path, memory, index=Number::from(0)), text_signature = "($self, path, memory, index=0)")]
    fn load_seq(&self, py: Python<'_>, path: PathBuf, memory: &Bound<'_, HostMemory>, index: Number) -> Result<u64> {
        let index = index.count("index")?;
        let seq = self.shared.with_memory(py, memory, |manager, memory| manager.load_seq(path, memory, index))?;
        Ok(Id(seq).number())
    }
}
