//! A value to show, before it becomes text or JSON.

use heddle_vfs::Time;

/// A value to show, as text or as JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Text.
    Text(String),
    /// A number.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// True or false.
    Flag(bool),
    /// A list.
    List(Vec<Value>),
    /// Named values.
    Fields(Vec<(&'static str, Value)>),
}

impl From<u64> for Value {
    fn from(n: u64) -> Value {
        Value::Number(n)
    }
}

impl From<u32> for Value {
    fn from(n: u32) -> Value {
        Value::Number(u64::from(n))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<Time> for Value {
    fn from(time: Time) -> Value {
        Value::Signed(time.0)
    }
}
