//! What is reported of a case.

use std::fmt;

use crate::case::{Case, HEAD_DIM, NUM_HEADS};

/// The times of a case, in microseconds.
pub struct Row {
    pub case: Case,
    /// Sets of tensors that the replays rotate over.
    pub sets: usize,
    /// Whether the answer was compared with the CPU's.
    pub compared: bool,
    /// What the host needs for a call.
    pub host: f32,
    pub call: f32,
    pub store: f32,
    pub load: f32,
    /// Copies of as many bytes as the call, the load and the store read and write.
    pub copy: f32,
    pub copy_of_load: f32,
    pub copy_of_store: f32,
}

impl Row {
    pub const HEAD: &str = concat!(
        "times in us; GB/s of bytes read and written; ratio: the copy's time by ours, 1 is the copy's speed\n",
        "case                                                    store   ratio       load   ratio     GB/s       call",
        "   ratio     copy    host  sets"
    );

    /// The row as a line of JSON, with what a peer needs to run the same case.
    pub fn json(&self) -> String {
        let Case { types, batch, past, current, num_repeat, layout } = self.case;
        let t3 = types.t3.map_or("null".to_owned(), |t3| format!("\"{t3}\""));
        format!(
            "{{\"case\": \"{}\", \"t1\": \"{}\", \"t2\": \"{}\", \"t3\": {t3}, \"batch\": {batch}, \"past\": {past}, \
             \"current\": {current}, \"num_repeat\": {num_repeat}, \"layout\": {}, \"num_heads\": {NUM_HEADS}, \
             \"head_dim\": {HEAD_DIM}, \"store_bytes\": {}, \"load_bytes\": {}, \"sets\": {}, \"compared\": {}, \
             \"store_us\": {}, \"load_us\": {}, \"call_us\": {}, \"copy_of_store_us\": {}, \"copy_of_load_us\": {}, \
             \"copy_us\": {}, \"host_us\": {}}}",
            self.case.name(),
            types.t1,
            types.t2,
            layout.code(),
            self.case.store_bytes(),
            self.case.load_bytes(),
            self.sets,
            self.compared,
            self.store,
            self.load,
            self.call,
            self.copy_of_store,
            self.copy_of_load,
            self.copy,
            self.host
        )
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, load, call, copy, host, .. } = self;
        write!(
            f,
            "{:<52} {store:>8.2} {:>7.2} {load:>10.2} {:>7.2} {:>8.0} {call:>10.2} {:>7.2} {copy:>8.2} {host:>7.2} {:>5}",
            self.case.name(),
            self.copy_of_store / store,
            self.copy_of_load / load,
            self.case.load_bytes() as f32 / load / 1e3,
            copy / call,
            self.sets
        )?;
        if self.compared { Ok(()) } else { write!(f, "  (too large to be compared with the CPU)") }
    }
}
