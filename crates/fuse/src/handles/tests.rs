use super::*;
use heddle_vfs::{Ino, OpenFlags};

fn opened(token: u64) -> Open {
    let handle = Handle { ino: Ino::ROOT, flags: OpenFlags::READ, token };
    Open { handle, marks: Marks::default() }
}

fn token(handles: &Handles, number: u64) -> Result<u64> {
    handles.with(number, |open| Ok(open.handle.token))
}

#[test]
fn slots_have_a_place_each() {
    assert_eq!([0, 63, 64, 191, 192].map(place), [(0, 0), (0, 63), (1, 0), (1, 127), (2, 0)]);
    assert_eq!(place(SLOTS_MAX - 1), (SEGMENTS - 1, (FIRST_SLOTS as usize) * (1 << (SEGMENTS - 1)) - 1));
    assert!(place(u32::MAX).0 >= SEGMENTS);
}

#[test]
fn a_number_means_one_open_file_and_nothing_after_its_release() {
    let handles = Handles::default();
    let numbers: Vec<u64> = (0..1000).map(|token| handles.insert(opened(token)).ok().unwrap()).collect();
    for (wanted, number) in numbers.iter().enumerate() {
        assert_eq!(token(&handles, *number), Ok(wanted as u64));
    }
    let old = numbers[500];
    assert_eq!(handles.remove(old).unwrap().handle.token, 500);
    assert!(handles.remove(old).is_none());
    let new = handles.insert(opened(7777)).ok().unwrap();
    assert_eq!(new as u32, old as u32, "the slot is used again");
    assert_eq!(token(&handles, old), Err(Error::BadHandle));
    assert_eq!(token(&handles, new), Ok(7777));
    assert_eq!(handles.drain().count(), 1000);
}

#[test]
fn numbers_that_were_never_given_out_find_nothing() {
    let handles = Handles::default();
    for number in [0, 1, u64::MAX, 1 << 32, u64::from(u32::MAX), u64::from(SLOTS_MAX)] {
        assert_eq!(token(&handles, number), Err(Error::BadHandle));
        assert!(handles.remove(number).is_none());
    }
}

#[test]
fn threads_do_not_get_each_others_files() {
    let handles = Handles::default();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let handles = &handles;
            scope.spawn(move || {
                for round in 0..5000 {
                    let wanted = thread << 32 | round;
                    let number = handles.insert(opened(wanted)).ok().unwrap();
                    assert_eq!(token(handles, number), Ok(wanted));
                    assert_eq!(handles.remove(number).unwrap().handle.token, wanted);
                }
            });
        }
    });
}

#[test]
fn of_two_files_the_smaller_slot_is_locked_first() {
    let handles = Handles::default();
    let [small, large] = [1, 2].map(|token| handles.insert(opened(token)).ok().unwrap());
    let tokens = |one: &Open, other: &Open| Ok([one.handle.token, other.handle.token]);
    for (numbers, wanted) in [([small, large], [1, 2]), ([large, small], [2, 1]), ([large; 2], [2; 2])] {
        assert_eq!(handles.with_both(numbers, tokens), Ok(wanted));
    }
    assert_eq!(handles.with_both([small, small | 1 << 32], tokens), Err(Error::BadHandle));
    std::thread::scope(|scope| {
        let waits = handles.slot(small as u32).unwrap().entry.write().unwrap();
        scope.spawn(|| handles.with_both([large, small], tokens));
        std::thread::sleep(std::time::Duration::from_millis(300));
        let is_free = handles.slot(large as u32).unwrap().entry.try_write().is_ok();
        drop(waits);
        assert!(is_free, "it holds the larger slot while it waits for the smaller one");
    });
}
