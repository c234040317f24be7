//! Tables as text: no lines, the first column aligned left, the others right.

use comfy_table::{CellAlignment, Table, presets};

/// A table of a header and rows.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(rows);
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table.to_string()
}
