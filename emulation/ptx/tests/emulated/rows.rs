//! The kernels that move and rotate rows write the bytes that the host writes.

use kvcache_conformance::random::Unstructured;
use kvcache_emulation_ptx::{Access, DeviceMemory, Fault, Freedom, Memory, Mutant, Order, code, launch};
use kvcache_kernels::cuda::{DeviceRows, Launch};
use kvcache_kernels::{CacheRows, Rope, Rotation, RowCopy, Serial};
use kvcache_schema::{CacheDims, CacheLayout, TypeCombination};

const DIMS: CacheDims = CacheDims { max_t: 40, num_layer: 2, num_heads: 3, inner: 32 };

/// What runs the launches: kernels, perhaps with a bug, on memory that they may read and write.
struct Device<'a> {
    mutant: Option<&'static Mutant>,
    order: Order,
    memory: [&'a DeviceMemory; 2],
}

impl Device<'_> {
    fn run<P: Copy>(&self, launches: &[Launch<P>]) -> Result<(), Fault> {
        let memory = Memory::new(self.memory.map(|memory| memory.region(Access::Any)));
        launches.iter().try_for_each(|what| {
            let mutated = self.mutant.and_then(|mutant| mutant.kernels.get(what.kernel));
            let code = mutated.unwrap_or_else(|| code(what.module, what.kernel, Freedom::default()));
            // SAFETY: the regions are DeviceMemory, which is borrowed and nobody else uses.
            unsafe { launch(code, &memory, what, self.order, false) }.map(drop)
        })
    }
}

/// Bytes of which no types make a NaN.
fn bytes(entropy: &mut Unstructured, len: usize) -> Vec<u8> {
    (0..len).map(|_| entropy.next() as u8 & 0x3b).collect()
}

/// Whether the kernels of some types, perhaps mutants, copy and rotate as the host does.
fn agrees(entropy: &mut Unstructured, types: TypeCombination, mutant: Option<&'static Mutant>) -> bool {
    let layout = entropy.pick(&CacheLayout::ALL);
    let rows = CacheRows::new(layout, DIMS, types.t2, types.t3.map(|t3| (8, t3))).expect("legal types");
    let rows = rows.with_quant_rotation(entropy.one_in(2));
    let [cache, scale] = [rows.cache_len(), rows.scale_len()].map(|len| bytes(entropy, len));
    let shift = if entropy.one_in(2) { types.t2.align() } else { 0 };
    let mut expected = [&cache, &scale].map(|bytes| DeviceMemory::of(bytes, 0));
    let memory = [DeviceMemory::of(&cache, shift), DeviceMemory::of(&scale, 0)];
    let device = Device { mutant, order: Order::Random(entropy.next() as u32), memory: memory.each_ref() };
    let on_device = DeviceRows::new(&rows, memory[0].address(), memory[1].address()).expect("aligned");
    let multiprocessors = entropy.pick(&[1, 100]);

    // In one half of the cases from the first slots to the last, so that no row that is written is read.
    let [to, least] = if entropy.one_in(2) { [40, 24] } else { [24, 0] };
    let copies = [(); 3].map(|()| {
        let len = entropy.within(0, 8);
        RowCopy { src: entropy.below(16), dst: least + entropy.below(to - least - 8), len }
    });
    let rotations = [0, 10, 20, 30].map(|slot| Rotation {
        slot,
        len: entropy.within(0, 9),
        delta: entropy.below(3) as i64 * 7 - 7,
    });
    let rope = if entropy.one_in(2) { Rope::neox(32, 1e4) } else { Rope::gptj(16, 1e4) };
    let [cache, scale] = &mut expected;
    rows.copy(cache.bytes_mut(), scale.bytes_mut(), &copies, &Serial).expect("slots of the cache");
    let rotated = rows.rotate_keys(cache.bytes_mut(), scale.bytes_mut(), &rotations, &rope, &Serial);
    let mut done = device.run(&on_device.copies(multiprocessors, &copies).expect("slots of the cache"));
    let launches = on_device.rotations(multiprocessors, &rotations, &rope);
    assert_eq!(launches.is_ok(), rotated.is_ok(), "the device rotates what the host does");
    done = done.and_then(|()| launches.map_or(Ok(()), |launches| device.run(&launches)));
    done.is_ok() && memory.iter().zip(&expected).all(|(got, expected)| got.bytes() == expected.bytes())
}

/// Whether the kernels, perhaps mutants, do what the host does with caches of all types.
pub fn all_agree(mutant: Option<&'static Mutant>) -> bool {
    (0..6).all(|seed| TypeCombination::all().all(|types| agrees(&mut Unstructured::seed(seed), types, mutant)))
}

#[test]
fn rows_are_those_of_the_host() {
    assert!(all_agree(None));
}
