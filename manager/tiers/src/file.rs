//! Blocks in files.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use kvcache_manager::{
    Block, BlockError, BlockKey, BlockKind, BlockStore, LongestBlock, StoreError, Usage, up_to_missing,
};

use crate::lru_index::LruIndex;

/// The name of a file that is being written, around some random letters.
const PREFIX: &str = ".kvblock-";
const SUFFIX: &str = ".tmp";
/// The folder is scanned again when this part of the capacity was put.
const SCAN: u64 = 16;
/// Uses of one process are so far apart at least, so that their order can be read from the files' times.
const STEP: Duration = Duration::from_micros(1);
/// A file whose time is so far ahead was used while a clock was wrong.
const AHEAD: Duration = Duration::from_secs(3600);

/// Blocks in a folder, one file each, of that many bytes in all; the least recently used ones are evicted, but for the
/// private ones of this process, of which there is no other copy: a tier that is full of these refuses more. Another
/// process that has the folder may evict them.
///
/// A file is named by its key, in a subfolder named by the key's first two digits. It is written under another name and
/// then renamed, so it is whole wherever it has this name; a power failure can leave a damaged one, since nothing is
/// synced, and that does not verify. Its time of modification is the time of its last use. Only its owner may read it.
///
/// Several processes may use one folder with the same capacity. They see each other's blocks at once, and count them at
/// a scan: when the folder is opened, and whenever a sixteenth of the capacity was put. So with `n` processes it holds
/// at most `(n - 1) / 16` more than its capacity, and for the time of a put the block that is put. A scan also removes
/// what killed processes have left half written: those files whose lock is free. Other files are left alone.
#[derive(Debug)]
pub struct FileTier {
    folder: PathBuf,
    longest: LongestBlock,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// By block, as far as this process knows: the time of its last use.
    held: LruIndex<SystemTime>,
    /// Blocks of this process that nobody else has: they are not evicted.
    private: HashSet<BlockKey>,
    /// The latest time that a use was given.
    last: SystemTime,
    /// Bytes put since the last scan.
    unscanned: u64,
    evicted: u64,
}

/// None if there is no such file.
fn existing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl FileTier {
    /// The blocks in a folder, which is created if it is not there; at most `nbytes` of them.
    ///
    /// # Errors
    /// What the system says of the folder.
    pub fn open(folder: impl AsRef<Path>, nbytes: u64) -> io::Result<Self> {
        let (held, private) = (LruIndex::new(nbytes), HashSet::new());
        let state = State { held, private, last: SystemTime::UNIX_EPOCH, unscanned: 0, evicted: 0 };
        let (folder, longest) = (folder.as_ref().to_owned(), LongestBlock::default());
        let tier = Self { folder, longest, state: Mutex::new(state) };
        tier.scan()?;
        // What cannot be removed, as in a folder that is only readable, can be read.
        let _ = tier.evict();
        Ok(tier)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The times of as many uses now, the latest first; all are later than those that were given before.
    fn now(&self, uses: usize) -> Vec<SystemTime> {
        let State { last, .. } = &mut *self.state();
        let times = (0..uses).map(|_| {
            *last = SystemTime::now().max(*last + STEP);
            *last
        });
        let mut times: Vec<_> = times.collect();
        times.reverse();
        times
    }

    fn path(&self, key: &BlockKey) -> PathBuf {
        let name = key.to_string();
        self.folder.join(&name[..2]).join(name)
    }

    /// Counts what is in the folder, which is made if it is not there, and removes what was left half written.
    fn scan(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        self.state().unscanned = 0;
        let since = SystemTime::now();
        let mut found = Vec::new();
        for subfolder in fs::read_dir(&self.folder)? {
            let subfolder = subfolder?;
            let digits = subfolder.file_name();
            let Some(digits) = digits.to_str().filter(|name| name.len() == 2) else { continue };
            if !subfolder.file_type()?.is_dir() {
                continue;
            }
            for file in fs::read_dir(subfolder.path())? {
                let file = file?;
                let name = file.file_name();
                let Some(name) = name.to_str().filter(|_| file.file_type().is_ok_and(|kind| kind.is_file())) else {
                    continue;
                };
                if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
                    remove_abandoned(&file.path());
                } else if let (true, Ok(key)) = (name.starts_with(digits), name.parse())
                    && let Some(metadata) = existing(file.metadata())?
                {
                    let mut used = metadata.modified()?;
                    if used > since + AHEAD {
                        used = since;
                        // If it is not possible, the next scan tries again.
                        let _ = File::open(file.path()).and_then(|file| file.set_modified(used));
                    }
                    found.push((key, used, metadata.len()));
                }
            }
        }
        found.sort_unstable_by_key(|&(_, used, _)| used);
        let State { held, .. } = &mut *self.state();
        let newer = held.drain().into_iter().filter(|&(_, used, _)| used >= since);
        found.into_iter().chain(newer).for_each(|(key, used, len)| held.insert(key, used, len));
        Ok(())
    }

    /// Removes the least recently used blocks until the others are within the capacity, but for private ones of this
    /// process.
    fn evict(&self) -> io::Result<()> {
        let mut stay = Vec::new();
        let evicted = self.evict_but(&mut stay);
        let held = &mut self.state().held;
        stay.into_iter().rev().for_each(|(key, used, len)| held.put_back(key, used, len));
        evicted
    }

    /// Takes private blocks of this process out of what is held, for the time of an eviction.
    fn evict_but(&self, stay: &mut Vec<(BlockKey, SystemTime, u64)>) -> io::Result<()> {
        let mut kept = 0;
        loop {
            let popped = self.state().held.pop_above(kept);
            let Some((key, used, len)) = popped else { return Ok(()) };
            if self.state().private.contains(&key) {
                kept += len;
                stay.push((key, used, len));
                continue;
            }
            let path = self.path(&key);
            let Some(metadata) = existing(fs::metadata(&path))? else { continue };
            let modified = metadata.modified()?;
            if modified > used {
                // Another process has used it since.
                self.state().held.insert(key, modified, len);
                continue;
            }
            match existing(fs::remove_file(&path)) {
                Ok(removed) => self.state().evicted += u64::from(removed.is_some()),
                Err(error) => {
                    self.state().held.insert(key, used, len);
                    return Err(error);
                }
            }
        }
    }

    /// Notes a use of a block, here and in the file's times.
    fn touch(&self, key: &BlockKey, file: &File, used: SystemTime, len: u64) {
        // A file that another user owns keeps its time, and is evicted the sooner.
        let _ = file.set_modified(used);
        self.state().held.insert(*key, used, len);
    }

    fn read(&self, key: &BlockKey, used: SystemTime) -> Result<Option<Block>, StoreError> {
        let path = self.path(key);
        // What is no file, as a pipe, might never be opened.
        if !existing(fs::metadata(&path))?.is_some_and(|metadata| metadata.is_file()) {
            self.state().held.remove(key);
            return Ok(None);
        }
        let Some(mut file) = existing(File::open(&path))? else { return Ok(None) };
        // Of the file that was opened: another process may have replaced it.
        let len = file.metadata()?.len();
        self.longest.check(len)?;
        let mut block = Vec::new();
        Read::by_ref(&mut file).take(Block::HEADER as u64).read_to_end(&mut block)?;
        // Before there is memory for it: a file may have any length.
        if Block::len_of(&block) != Some(len) || self.state().held.check(len).is_err() {
            return Err(BlockError::Length.into());
        }
        let rest = len - block.len() as u64;
        block.try_reserve_exact(usize::try_from(rest).unwrap_or(usize::MAX)).map_err(io::Error::from)?;
        Read::by_ref(&mut file).take(rest).read_to_end(&mut block)?;
        self.touch(key, &file, used, len);
        Ok(Some(Block::verify(key, Bytes::from(block))?))
    }

    fn write(&self, key: &BlockKey, block: &Block) -> io::Result<()> {
        let (path, len, used) = (self.path(key), block.nbytes(), self.now(1)[0]);
        if existing(fs::metadata(&path))?.is_some_and(|metadata| metadata.is_file() && metadata.len() == len)
            && let Some(file) = existing(File::open(&path))?
        {
            self.touch(key, &file, used, len);
            return Ok(());
        }
        let subfolder = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(subfolder)?;
        let mut file = loop {
            let file = tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).tempfile_in(subfolder)?;
            // Where a file system has no locks, nobody removes it while it is written or ever.
            let _ = file.as_file().lock();
            // A scan that came before the lock has removed it.
            if file.path().exists() {
                break file;
            }
        };
        block.parts().iter().try_for_each(|part| file.write_all(part))?;
        self.touch(key, file.as_file(), used, len);
        if let Err(error) = file.persist(&path) {
            self.state().held.remove(key);
            return Err(error.error);
        }
        Ok(())
    }
}

/// Removes a file that is being written, unless its writer, who has locked it, lives.
fn remove_abandoned(path: &Path) {
    if let Ok(file) = File::open(path)
        && file.try_lock().is_ok()
    {
        // If it is not possible now, the next scan tries again.
        let _ = fs::remove_file(path);
    }
}

impl BlockStore for FileTier {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        self.read(key, self.now(1)[0])
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        let len = block.nbytes();
        let is_due = {
            let State { held, unscanned, .. } = &mut *self.state();
            held.check(len)?;
            *unscanned += len;
            *unscanned - len > held.capacity / SCAN
        };
        if is_due {
            self.scan()?;
        }
        let is_private = block.kind() == BlockKind::Private;
        if is_private {
            self.state().private.insert(*key);
        }
        if let Err(error) = self.write(key, &block) {
            self.state().private.remove(key);
            return Err(error.into());
        }
        self.evict()?;
        let (nbytes, capacity) = {
            let State { held, .. } = &*self.state();
            (held.nbytes(), held.capacity)
        };
        if is_private && nbytes > capacity {
            self.delete(key)?;
            return Err(StoreError::Full { nbytes, capacity });
        }
        Ok(())
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        Ok(existing(fs::metadata(self.path(key)))?.is_some_and(|metadata| metadata.is_file()))
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        {
            let State { held, private, .. } = &mut *self.state();
            held.remove(key);
            private.remove(key);
        }
        existing(fs::remove_file(self.path(key)))?;
        Ok(())
    }

    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        let uses = self.now(keys.len());
        let (blocks, error) = up_to_missing(keys.iter().zip(uses).map(|(key, used)| self.read(key, used)));
        self.state().held.touch_chain(&keys[..blocks.len()]);
        (blocks, error)
    }

    fn expect_blocks(&self, nbytes: u64) {
        self.longest.expect(nbytes);
    }

    fn usage(&self) -> Usage {
        let State { held, evicted, .. } = &*self.state();
        held.usage(*evicted)
    }
}
