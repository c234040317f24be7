//! Many mutants in one build, each of which a number in the environment switches on.
//!
//! A build takes far longer than most tests. So a function with mutants gets its body once for each and once as it is:
//!
//! ```text
//! if switched_mutant::is(7) { the body with the change } else { the body as it is }
//! ```
//!
//! A `const fn` cannot ask. One that returns an `impl Trait` can return one type only. These are left out, and so is a function
//! within a function: such mutants are built alone.

use std::collections::BTreeMap;
use std::ops::Range;

use super::list::{Mutant, bytes_of};
use crate::tidy::source::words;

/// Holds the number of the mutant that is on; without it none is.
pub const ON: &str = "HEDDLE_MUTANT";

/// Is at the end of each crate with mutants. It reads the environment without allocation and without locks: it runs in signal handlers,
/// in forked children, and in calls that the preloaded library has taken over.
pub const MODULE: &str = r#"
#[allow(missing_docs, dead_code)]
pub(crate) mod switched_mutant {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static ON: AtomicU32 = AtomicU32::new(u32::MAX);
    #[inline]
    pub(crate) fn is(number: u32) -> bool {
        let on = ON.load(Relaxed);
        if on == u32::MAX { look() == number } else { on == number }
    }
    #[cold]
    fn look() -> u32 {
        unsafe extern "C" {
            fn getenv(name: *const std::ffi::c_char) -> *const std::ffi::c_char;
        }
        // SAFETY: no program that is tested changes this variable.
        let value = unsafe { getenv(c"HEDDLE_MUTANT".as_ptr()) };
        let mut number = 0;
        if !value.is_null() {
            // SAFETY: the environment's strings end with a null.
            let digits = unsafe { std::ffi::CStr::from_ptr(value) }.to_bytes();
            number = digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
        }
        ON.store(number, Relaxed);
        number
    }
}
"#;

pub const SAFE_MODULE: &str = r#"
#[allow(missing_docs, dead_code)]
pub(crate) mod switched_mutant {
    use std::sync::OnceLock;
    static ON: OnceLock<u32> = OnceLock::new();
    pub(crate) fn is(number: u32) -> bool {
        let on = || std::env::var("HEDDLE_MUTANT").ok().and_then(|on| on.parse().ok()).unwrap_or(0);
        *ON.get_or_init(on) == number
    }
}
"#;

/// A file with its mutants in it.
#[derive(Default)]
pub struct Switched {
    pub text: String,
    /// Lines, counted from 1, of one mutant's body.
    bodies: Vec<(Range<usize>, u32)>,
    /// Lines of a function, and all its mutants.
    functions: Vec<(Range<usize>, Vec<u32>)>,
}

/// What a compiler's error says about mutants.
#[derive(PartialEq, Eq, Debug)]
pub enum Blame {
    /// This one does not compile.
    One(u32),
    /// The function with these cannot be written so.
    All(Vec<u32>),
}

impl Switched {
    /// Mutants of one file under their numbers. Those that must be built alone are left out.
    pub fn new(source: &str, mutants: &[(u32, &Mutant)]) -> Switched {
        let mut functions: BTreeMap<(usize, usize), Vec<(u32, &Mutant)>> = BTreeMap::new();
        for (number, mutant) in mutants {
            if let Some(body) = body_for_switches(source, mutant) {
                functions.entry((body.start, body.end)).or_default().push((*number, mutant));
            }
        }
        let (mut switched, mut done) = (Switched::default(), 0);
        for ((start, end), mutants) in functions {
            if start < done {
                continue;
            }
            switched.text.push_str(&source[done..start]);
            let first = switched.line();
            for (number, mutant) in &mutants {
                switched.add(source, start..end, *number, mutant);
            }
            switched.text.push_str(&format!("{{{}\n}}\n", &source[start..end]));
            let numbers = mutants.iter().map(|(number, _)| *number).collect();
            switched.functions.push((first..switched.line() + 1, numbers));
            done = end;
        }
        switched.text.push_str(&source[done..]);
        switched
    }

    fn add(&mut self, source: &str, body: Range<usize>, number: u32, mutant: &Mutant) {
        let Some(span) = bytes_of(source, mutant.span) else { return };
        self.text.push_str(&format!("\nif crate::switched_mutant::is({number}) {{\n"));
        let first = self.line();
        let (before, behind) = (&source[body.start..span.start], &source[span.end..body.end]);
        self.text.push_str(&format!("{before}{}{behind}\n", mutant.replacement));
        self.bodies.push((first..self.line(), number));
        self.text.push_str("} else ");
    }

    /// The one that is being written.
    fn line(&self) -> usize {
        self.text.matches('\n').count() + 1
    }

    /// The mutants in it.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.bodies.iter().map(|(_, number)| *number)
    }

    /// To whom an error in this line is due.
    pub fn blame(&self, line: usize) -> Option<Blame> {
        let one = self.bodies.iter().find(|(lines, _)| lines.contains(&line));
        let all = self.functions.iter().find(|(lines, _)| lines.contains(&line));
        one.map(|(_, number)| Blame::One(*number)).or(all.map(|(_, numbers)| Blame::All(numbers.clone())))
    }
}

/// The inside of the body of a mutant's function, if it can be there several times.
fn body_for_switches(source: &str, mutant: &Mutant) -> Option<Range<usize>> {
    let function = bytes_of(source, mutant.function?)?;
    let text = source.get(function.clone())?;
    let (signature, opens) = signature(text)?;
    let is_const = words(signature, "const").any(|at| signature[at..].starts_with("const "));
    if is_const || words(signature, "impl").next().is_some_and(|_| returns_impl(signature)) {
        return None;
    }
    let body = function.start + opens + 1..function.start + text.rfind('}')?;
    let span = bytes_of(source, mutant.span)?;
    (body.start <= span.start && span.end <= body.end).then_some(body)
}

fn returns_impl(signature: &str) -> bool {
    signature.rsplit_once("->").is_some_and(|(_, returned)| words(returned, "impl").next().is_some())
}

/// What stands before the body, without attributes and comments, and where the body opens.
fn signature(function: &str) -> Option<(&str, usize)> {
    let mut at = 0;
    let is_before = |line: &str| {
        let line = line.trim_start();
        line.is_empty() || line.starts_with("//") || words(line, "fn").next().is_none()
    };
    for line in function.split_inclusive('\n').take_while(|line| is_before(line)) {
        at += line.len();
    }
    let (mut depth, mut comment) = (0, false);
    for (i, c) in function.char_indices().skip_while(|(i, _)| *i < at) {
        match c {
            '\n' => comment = false,
            _ if comment => {}
            '/' if function[i..].starts_with("//") => comment = true,
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some((&function[at..i], i)),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::list::tests::mutant;

    const SOURCE: &str =
        "/// fn { of comments\n#[inline]\nfn a(b: [u8; 2]) -> bool {\n    b[0] < 1\n}\n\nfn c() {}\n";

    fn at_the_operator(by: &str) -> Mutant {
        Mutant { function: Some([(1, 1), (5, 2)]), ..mutant([(4, 10), (4, 11)], by) }
    }

    #[test]
    fn each_mutant_has_a_body_and_the_source_keeps_its_own() {
        let switched = Switched::new(SOURCE, &[(7, &at_the_operator("<=")), (8, &at_the_operator(">"))]);
        let bare: String = switched.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let wanted = "fn a(b: [u8; 2]) -> bool { if crate::switched_mutant::is(7) { b[0] <= 1 } \
                      else if crate::switched_mutant::is(8) { b[0] > 1 } else { b[0] < 1 } } fn c() {}";
        assert!(bare.ends_with(wanted), "{bare}");
        assert_eq!(switched.numbers().collect::<Vec<_>>(), [7, 8]);
    }

    #[test]
    fn an_error_is_due_to_the_mutant_in_its_line() {
        let switched = Switched::new(SOURCE, &[(7, &at_the_operator("<=")), (8, &at_the_operator(">"))]);
        let blamed = |code: &str| {
            switched.blame(switched.text.lines().position(|line| line.contains(code)).unwrap() + 1)
        };
        assert_eq!(blamed("<= 1"), Some(Blame::One(7)));
        assert_eq!(blamed("> 1"), Some(Blame::One(8)));
        assert_eq!(blamed("is(8)"), Some(Blame::All(vec![7, 8])));
        assert_eq!(blamed("< 1"), Some(Blame::All(vec![7, 8])));
        assert_eq!(blamed("fn c"), None);
    }

    #[test]
    fn what_cannot_ask_or_returns_an_opaque_type_is_left_out() {
        for other in ["const fn a(b: [u8; 2]) -> bool", "fn a(b: [u8; 2]) -> impl Sized"] {
            let source = SOURCE.replace("fn a(b: [u8; 2]) -> bool", other);
            let switched = Switched::new(&source, &[(7, &at_the_operator("<="))]);
            assert_eq!((switched.text, switched.bodies), (source, Vec::new()));
        }
    }
}
