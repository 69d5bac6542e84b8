//! The colours and fonts of charts and pages.

/// Color of the background.
pub const BACKGROUND: &str = "#ffffff";
/// Color of borders.
pub const BORDER: &str = "#c9d1d9";
/// Color of grid lines.
pub const GRID: &str = "#e3e7eb";
/// Color of text.
pub const TEXT: &str = "#1f2328";
/// Color of explanatory text.
pub const FAINT: &str = "#59636e";
/// Font families, in order of preference.
pub const FONT: &str = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif";

/// The hues of series: those of Okabe and Ito, which people with any colour vision can tell apart, without the yellow
/// that white paper swallows, and two more. Each has one for light and one for dark backgrounds.
pub(super) const HUES: [(&str, &str); 9] = [
    ("#0072b2", "#5ab4f0"),
    ("#d55e00", "#ff9448"),
    ("#009e73", "#3dd6a8"),
    ("#a8478a", "#e59ccb"),
    ("#b37a00", "#f0c050"),
    ("#3a8fbf", "#9ad4ff"),
    ("#4b5563", "#b6c0cc"),
    ("#8c4a3c", "#dba99b"),
    ("#111111", "#f4f4f4"),
];
