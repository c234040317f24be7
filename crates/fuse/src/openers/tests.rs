use super::*;
use heddle_vfs::OpenFlags;
use heddle_vfs::model::ModelFs;

fn counted(openers: &Openers) -> (u32, u32) {
    openers.shard(Ino::ROOT).get(&Ino::ROOT.0).map_or((0, 0), |counted| (counted.open, counted.past_kernel))
}

fn handle() -> Handle {
    Handle { ino: Ino::ROOT, flags: OpenFlags::READ, token: 0 }
}

#[test]
fn a_descriptor_counts_as_announced_until_a_stranger_has_it() {
    let (fs, openers) = (ModelFs::new(), Openers::default());
    let [first, second, third] = [0; 3].map(|_| openers.opens(&fs, &handle()));
    assert_eq!(counted(&openers), (3, 0));
    openers.past_kernel(&fs, &handle(), &first);
    openers.past_kernel(&fs, &handle(), &first);
    assert_eq!(counted(&openers), (3, 1), "it counts once");
    openers.past_kernel(&fs, &handle(), &second);
    assert_eq!(counted(&openers), (3, 2));
    openers.through_kernel(&fs, &handle(), &first);
    openers.past_kernel(&fs, &handle(), &first);
    assert_eq!(counted(&openers), (3, 1), "a stranger has it for ever");
    openers.through_kernel(&fs, &handle(), &third);
    openers.past_kernel(&fs, &handle(), &third);
    assert_eq!(counted(&openers), (3, 1));
    [first, second, third].iter().for_each(|calls| openers.closes(&fs, &handle(), calls));
    assert!(openers.shard(Ino::ROOT).is_empty(), "nothing stays");
}

#[test]
fn directories_are_not_counted() {
    let (fs, openers, directory) = (ModelFs::new(), Openers::default(), Calls::default());
    openers.past_kernel(&fs, &handle(), &directory);
    openers.through_kernel(&fs, &handle(), &directory);
    openers.closes(&fs, &handle(), &directory);
    assert!(openers.shard(Ino::ROOT).is_empty());
}
