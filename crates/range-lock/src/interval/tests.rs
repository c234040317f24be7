use super::*;

#[test]
fn the_tree_finds_every_overlap_and_stays_shallow() {
    let arena = Arena::private(16 << 20).unwrap();
    let mut tree = Treap::new(&arena, Ptr::NULL);
    let mut model: Vec<(Ptr<Node>, u64, u64)> = Vec::new();
    let mut random = (1..).map(priority);
    let mut number = |below: u64| random.next().unwrap() % below;
    for turn in 0..4000 {
        if model.len() > 600 || (turn > 2000 && !model.is_empty()) {
            let (node, ..) = model.swap_remove(number(model.len() as u64) as usize);
            tree.remove(node);
        } else {
            let start = number(10_000);
            let last = start + number(50);
            let node = arena.alloc_zeroed::<Node>(1).unwrap();
            arena.get(node).reset(start, last, Access::Shared, number(u64::MAX));
            tree.insert(node);
            model.push((node, start, last));
        }
        let (first, last) = (number(10_000), number(10_100));
        let mut found = 0;
        tree.for_each_overlap(first, last, |_| found += 1);
        assert_eq!(found, model.iter().filter(|(_, s, l)| *s <= last && *l >= first).count());
        let depth = tree.checked_depth();
        assert!(depth < 40, "{depth} levels for {} nodes", model.len());
    }
}

#[test]
fn sorted_arrivals_stay_shallow() {
    let arena = Arena::private(16 << 20).unwrap();
    let mut tree = Treap::new(&arena, Ptr::NULL);
    for i in 1..=4096 {
        let node = arena.alloc_zeroed::<Node>(1).unwrap();
        arena.get(node).reset(i, i, Access::Shared, priority(i));
        tree.insert(node);
    }
    assert!(tree.checked_depth() < 50, "{} levels for 4096 nodes", tree.checked_depth());
}
