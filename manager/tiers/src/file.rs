//! Blocks in files.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use kvcache_manager::{Block, BlockKey, BlockStore, StoreError, Usage};

use crate::index::{Entry, Index};

/// What a file that is being written is called, around some random letters.
const PREFIX: &str = ".kvblock-";
const SUFFIX: &str = ".tmp";
/// The folder is scanned anew when this part of the capacity was put.
const SCAN: u64 = 16;

/// Blocks in a folder, one file each, of so many bytes in all; the least recently used ones are evicted.
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
    capacity: u64,
    index: Mutex<Index>,
    /// Bytes put since the last scan.
    unscanned: AtomicU64,
    evicted: AtomicU64,
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
        let folder = folder.as_ref().to_owned();
        fs::create_dir_all(&folder)?;
        let tier = Self {
            folder,
            capacity: nbytes,
            index: Mutex::default(),
            unscanned: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        };
        tier.scan()?;
        // What cannot be removed, as in a folder that is only readable, can be read.
        let _ = tier.evict();
        Ok(tier)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> SystemTime {
        self.index().now(1).next().unwrap_or_else(SystemTime::now)
    }

    fn path(&self, key: &BlockKey) -> PathBuf {
        let name = key.to_string();
        self.folder.join(&name[..2]).join(name)
    }

    /// Counts what is in the folder, and removes what was left half written.
    fn scan(&self) -> io::Result<()> {
        self.unscanned.store(0, Ordering::Relaxed);
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
                let Some(name) = name.to_str() else { continue };
                if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
                    remove_abandoned(&file.path());
                } else if let (true, Ok(key)) = (name.starts_with(digits), name.parse())
                    && let Some(metadata) = existing(file.metadata())?
                    && metadata.is_file()
                {
                    found.push((key, Entry { used: metadata.modified()?, len: metadata.len() }));
                }
            }
        }
        self.index().replace(found, since);
        Ok(())
    }

    /// Removes the least recently used blocks until the others are within the capacity.
    fn evict(&self) -> io::Result<()> {
        loop {
            let Some((key, entry)) = self.index().pop_above(self.capacity) else { return Ok(()) };
            let path = self.path(&key);
            let Some(metadata) = existing(fs::metadata(&path))? else { continue };
            let used = metadata.modified()?;
            if used > entry.used {
                // Another process has used it since.
                self.index().insert(key, Entry { used, ..entry });
                continue;
            }
            match existing(fs::remove_file(&path)) {
                Ok(removed) => self.evicted.fetch_add(removed.is_some().into(), Ordering::Relaxed),
                Err(error) => {
                    self.index().insert(key, entry);
                    return Err(error);
                }
            };
        }
    }

    /// Notes a use of a block, here and in the file's times.
    fn touch(&self, key: &BlockKey, file: &File, used: SystemTime, len: u64) {
        // A file that another user owns keeps its time, and is evicted the sooner.
        let _ = file.set_modified(used);
        self.index().insert(*key, Entry { used, len });
    }

    fn read(&self, key: &BlockKey, used: SystemTime) -> Result<Option<Block>, StoreError> {
        let Some(mut file) = existing(File::open(self.path(key)))? else {
            self.index().remove(key);
            return Ok(None);
        };
        let mut block = Vec::with_capacity(usize::try_from(file.metadata()?.len()).unwrap_or(0));
        file.read_to_end(&mut block)?;
        self.touch(key, &file, used, block.len() as u64);
        Ok(Some(Block::verify(key, Bytes::from(block))?))
    }

    fn write(&self, key: &BlockKey, block: &Block) -> io::Result<()> {
        let (path, len, used) = (self.path(key), block.nbytes(), self.now());
        if let Some(file) = existing(File::open(&path))?
            && file.metadata()?.len() == len
        {
            self.touch(key, &file, used, len);
            return Ok(());
        }
        let subfolder = path.parent().unwrap_or(&self.folder);
        match fs::create_dir(subfolder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
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
            self.index().remove(key);
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
        self.read(key, self.now())
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        let len = block.nbytes();
        if len > self.capacity {
            return Err(StoreError::Capacity { len, capacity: self.capacity });
        }
        if self.unscanned.fetch_add(len, Ordering::Relaxed) > self.capacity / SCAN {
            self.scan()?;
        }
        self.write(key, &block)?;
        Ok(self.evict()?)
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        Ok(existing(fs::metadata(self.path(key)))?.is_some_and(|metadata| metadata.is_file()))
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        self.index().remove(key);
        existing(fs::remove_file(self.path(key)))?;
        Ok(())
    }

    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        let uses = self.index().now(keys.len());
        let mut blocks = Vec::new();
        for (key, used) in keys.iter().zip(uses) {
            match self.read(key, used) {
                Ok(Some(block)) => blocks.push(block),
                Ok(None) => break,
                Err(error) => return (blocks, Some(error)),
            }
        }
        (blocks, None)
    }

    fn usage(&self) -> Usage {
        let index = self.index();
        Usage {
            blocks: Some(index.len() as u64),
            nbytes: Some(index.nbytes()),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }
}
