//! Files of writers that were killed, of other processes, of others altogether; folders that take no more.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use kvcache_manager::{Block, BlockError, BlockKey, BlockKind, BlockStore, StoreError};
use kvcache_testing::manager::store::stored;
use kvcache_tiers::FileTier;

use crate::{key, prefix, wait_for};

const FOLDER: &str = "KVCACHE_TIERS_FOLDER";
/// The bytes of a block's rows: so many that a kill meets a write.
const LEN: usize = 1 << 20;
const LARGE: u64 = 1 << 30;

fn large(i: u8) -> Block {
    Block::new(BlockKind::Prefix, &key(i), vec![i; LEN].into(), LEN).unwrap()
}

#[test]
#[ignore = "what others run in a process of its own"]
fn put_blocks_until_killed() {
    let tier = FileTier::open(std::env::var_os(FOLDER).unwrap(), LARGE).unwrap();
    loop {
        for i in 0..=255 {
            tier.put(&key(i), large(i)).unwrap();
            tier.delete(&key(i.wrapping_sub(8))).unwrap();
        }
    }
}

#[test]
#[ignore = "what others run in a process of its own"]
fn put_a_block_on_a_full_disk() {
    let tier = FileTier::open(std::env::var_os(FOLDER).unwrap(), LARGE).unwrap();
    tier.put(&key(1), prefix(1)).unwrap();
    assert!(tier.put(&key(2), large(2)).is_err());
    assert_eq!(tier.get(&key(1)).unwrap(), Some(prefix(1)));
    assert_eq!(tier.get(&key(2)).unwrap(), None);
}

#[test]
#[ignore = "what others run in a process of its own"]
fn read_only() {
    let tier = FileTier::open(std::env::var_os(FOLDER).unwrap(), prefix(1).nbytes()).unwrap();
    assert!(tier.put(&key(2), prefix(0)).is_err());
    assert!(tier.put(&key(3), prefix(0)).is_err());
    for i in [0, 1] {
        assert_eq!(tier.get(&key(i)).unwrap(), Some(prefix(i)));
    }
}

/// This program, to run one of these.
fn this(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(FOLDER, folder).stdout(Stdio::null());
    command
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    entries(folder).iter().flat_map(|sub| entries(sub)).collect()
}

/// A writer is killed in the middle of puts: each file is whole, or removed by the next scan.
#[test]
fn what_a_killed_writer_leaves_is_whole_or_gone() {
    let mut half_written = 0;
    for _ in 0..40 {
        let folder = tempfile::tempdir().unwrap();
        let writer = Killed(this("files::put_blocks_until_killed", folder.path()).spawn().unwrap());
        let is_half = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "tmp");
        wait_for(|| files(folder.path()).iter().any(is_half));
        drop(writer);
        half_written += files(folder.path()).iter().filter(|path| is_half(path)).count();
        let tier = FileTier::open(folder.path(), LARGE).unwrap();
        let left = files(folder.path());
        assert_eq!(tier.usage().blocks, Some(left.len() as u64));
        for path in left {
            let key: BlockKey = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            tier.get(&key).unwrap().unwrap();
        }
        if half_written > 2 {
            return;
        }
    }
    panic!("of 40 kills only {half_written} have met a write");
}

/// The file of a writer that lives is not removed by others' scans.
#[test]
fn a_living_writer_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Killed(this("files::put_blocks_until_killed", folder.path()).spawn().unwrap());
    let mut scans = 0;
    wait_for(|| {
        // It panics where a put fails.
        assert!(writer.0.try_wait().unwrap().is_none());
        scans += u32::from(FileTier::open(folder.path(), LARGE).unwrap().usage().blocks > Some(0));
        scans > 500
    });
}

/// A limit of the size of files is met in the middle of a write, as a full disk is.
#[cfg(unix)]
#[test]
fn on_a_full_disk_old_blocks_stay() {
    let folder = tempfile::tempdir().unwrap();
    let program = this("files::put_a_block_on_a_full_disk", folder.path());
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"]).arg(program.get_program());
    let status = shell.args(program.get_args()).env(FOLDER, folder.path()).stdout(Stdio::null()).status().unwrap();
    assert!(status.success());
    assert_eq!(files(folder.path()).len(), 1);
}

/// Opened with a capacity that calls for an eviction, which is not possible either.
#[cfg(unix)]
#[test]
fn a_folder_that_is_only_readable_gives_its_blocks() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let tier = FileTier::open(folder.path(), LARGE).unwrap();
    (0..3).for_each(|i| tier.put(&key(i), prefix(i)).unwrap());
    tier.delete(&key(2)).unwrap();
    let set_mode = |mode: u32| {
        let subfolders = ["00", "01", "02"].map(|name| folder.path().join(name));
        let set = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        subfolders.iter().for_each(|path| set(path));
        set(folder.path());
    };
    set_mode(0o555);
    let program = this("files::read_only", folder.path());
    // Root may write wherever it likes, but for root without capabilities.
    let mut command = match tempfile::tempfile_in(folder.path()) {
        Ok(_) => Command::new("setpriv"),
        Err(_) => Command::new("env"),
    };
    if command.get_program() == "setpriv" {
        command.arg("--bounding-set=-all");
    }
    command.arg(program.get_program()).args(program.get_args()).env(FOLDER, folder.path());
    let status = command.stdout(Stdio::null()).status();
    set_mode(0o755);
    assert!(status.unwrap().success());
}

/// Two tiers on one folder, as of two processes: each finds what the other has put after the scan, and neither evicts
/// what the other has used since.
#[test]
fn two_tiers_on_one_folder_agree() {
    let folder = tempfile::tempdir().unwrap();
    // All of one length.
    let alike: Vec<u8> = (0..45).map(|i| 5 * i).collect();
    let open = || FileTier::open(folder.path(), 40 * prefix(0).nbytes()).unwrap();
    let put = |tier: &FileTier, i: u8| tier.put(&key(i), prefix(i)).unwrap();
    alike[..40].iter().for_each(|&i| put(&open(), i));
    let [a, b] = [open(), open()];
    assert_eq!(b.get(&key(0)).unwrap(), Some(prefix(0)));
    put(&a, alike[40]);
    assert_eq!(b.get(&key(alike[40])).unwrap(), Some(prefix(alike[40])));
    let gone = |tier: &FileTier| alike[..41].iter().filter(|&&i| !tier.contains(&key(i)).unwrap()).count();
    assert_eq!((gone(&a), gone(&b)), (1, 1));
    assert_eq!(a.get(&key(alike[1])).unwrap(), None);
    // What others have put counts from the next scan on, which a sixteenth of the capacity calls for.
    alike[41..].iter().for_each(|&i| put(&b, i));
    assert_eq!(files(folder.path()).len(), 40);
}

/// Files that are no blocks where blocks are looked for: of other lengths, however long, of a time to come, pipes; and
/// a folder that somebody has removed.
#[cfg(unix)]
#[test]
fn what_is_no_block_harms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let open = || FileTier::open(folder.path(), 8 * prefix(0).nbytes()).unwrap();
    let path = |i| folder.path().join(&key(i).to_string()[..2]).join(key(i).to_string());
    let tier = open();
    (0..3).for_each(|i| tier.put(&key(5 * i), prefix(5 * i)).unwrap());
    fs::File::options().write(true).open(path(0)).unwrap().set_len(8 << 40).unwrap();
    assert!(matches!(tier.get(&key(0)), Err(StoreError::Bad(BlockError::Length))));
    // Nor is there memory for more than the tier may hold.
    let mut header = stored(&prefix(0))[..Block::HEADER].to_vec();
    header[48..56].copy_from_slice(&(1u64 << 40).to_le_bytes());
    header[56..].copy_from_slice(&8u64.to_le_bytes());
    fs::write(path(0), &header).unwrap();
    let len = Block::len_of(&header).unwrap();
    fs::File::options().write(true).open(path(0)).unwrap().set_len(len).unwrap();
    assert!(matches!(tier.get(&key(0)), Err(StoreError::Bad(BlockError::Length))));
    // Nor, of a tier that may hold anything, for more than a block has.
    let vast = FileTier::open(folder.path(), u64::MAX).unwrap();
    vast.expect_blocks(prefix(4).nbytes());
    assert!(matches!(vast.get(&key(0)), Err(StoreError::Bad(BlockError::Length))));
    assert!(vast.get(&key(5)).unwrap().is_some());
    tier.delete(&key(0)).unwrap();
    let pipe = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    pipe(&path(0));
    pipe(&path(0).with_file_name(".kvblock-a.tmp"));
    assert_eq!(tier.get(&key(0)).unwrap(), None);
    // What was used last is kept, although another file is of a year to come.
    let year = Duration::from_secs(365 * 24 * 3600);
    fs::File::open(path(5)).unwrap().set_modified(SystemTime::now() + year).unwrap();
    let tier = open();
    (10..20).for_each(|i| tier.put(&key(5 * i), prefix(5 * i)).unwrap());
    assert!(tier.get(&key(95)).unwrap().is_some() && tier.get(&key(5)).unwrap().is_none());
    fs::remove_dir_all(folder.path()).unwrap();
    tier.put(&key(1), prefix(1)).unwrap();
    assert_eq!(tier.get(&key(1)).unwrap(), Some(prefix(1)));
}

#[test]
fn other_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let others = ["notes", "01/notes", "01/.kvblock-1.txt", "zz/notes"].map(|name| folder.path().join(name));
    let misplaced = folder.path().join("01").join(key(2).to_string());
    for path in others.iter().chain([&misplaced]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![0; 10_000]).unwrap();
    }
    let tier = FileTier::open(folder.path(), 200).unwrap();
    for i in 0..10 {
        tier.put(&key(i), prefix(i)).unwrap();
    }
    assert!(tier.usage().nbytes <= Some(200));
    assert!(others.iter().chain([&misplaced]).all(|path| fs::metadata(path).unwrap().len() == 10_000));
}
