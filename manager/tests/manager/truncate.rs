//! What truncation leaves of the index tensors.

use kvcache_manager::schema::ElementType;
use kvcache_manager::{Append, CacheSpec, Geometry, Manager, Mode};

use kvcache_testing::manager::copies::Copies;

/// A cache of this many slots, with pages of one.
fn manager(max_t: usize) -> Manager {
    let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 2, max_t };
    let builder = CacheSpec::builder(geometry).cache_type(ElementType::Float32);
    Manager::new(builder.mode(Mode::Paged { page_size: 1 }).max_pages(4).build().unwrap()).unwrap()
}

#[test]
fn pages_that_were_removed_leave_their_row_of_the_index_tensor() {
    let mut manager = manager(16);
    let (a, b) = (manager.create(), manager.create());
    let step = |manager: &mut Manager, n: usize| {
        let appends = [Append::count(a, n), Append::count(b, n)];
        let step = manager.begin_step(&appends).unwrap().apply(&mut Copies::default()).unwrap();
        let starts = step.cachestarts().to_owned();
        step.commit();
        starts
    };
    assert_eq!(step(&mut manager, 3), ndarray::array![[0, 1, 2, -1], [3, 4, 5, -1]].into_dyn());
    manager.seq_rm(a, 1..).unwrap();
    assert_eq!(step(&mut manager, 1), ndarray::array![[0, 1, -1, -1], [3, 4, 5, 2]].into_dyn());
    manager.seq_keep(a).unwrap();
    assert_eq!(step(&mut manager, 1), ndarray::array![[0, 1, 3, -1], [4, -1, -1, -1]].into_dyn());
}
