//! Squarified treemaps (Bruls, Huizing and van Wijk, 2000): areas in proportion to sizes, nearly square.

#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Area {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// An area for each size, in the given order. Sizes that are not positive get an area of 0.
pub(super) fn squarified(sizes: &[f64], within: Area) -> Vec<Area> {
    let mut order: Vec<(f64, usize)> =
        sizes.iter().copied().zip(0..).filter(|(size, _)| *size > 0.0).collect();
    order.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let sum: f64 = order.iter().map(|(size, _)| size).sum();
    let mut areas = vec![Area { x: within.x, y: within.y, ..Area::default() }; sizes.len()];
    if sum <= 0.0 {
        return areas;
    }
    let scale = within.width * within.height / sum;
    let (mut rest, mut left) = (within, order.as_slice());
    while !left.is_empty() {
        let side = rest.width.min(rest.height);
        let mut count = 1;
        let of = |count: usize| -> (f64, f64) {
            let row = left.iter().take(count).map(|(size, _)| size * scale);
            let sum: f64 = row.clone().sum();
            let mut worst = 0.0_f64;
            for area in row {
                // The longer side of a rectangle by the shorter one.
                let ratio = (side * side * area / (sum * sum)).max(sum * sum / (side * side * area));
                worst = worst.max(ratio);
            }
            (sum, worst)
        };
        while count < left.len() && of(count + 1).1 <= of(count).1 {
            count += 1;
        }
        let (sum, _) = of(count);
        let thick = if side > 0.0 { sum / side } else { 0.0 };
        let mut along = 0.0;
        let (row, later) = left.split_at_checked(count).unwrap_or((left, &[]));
        for (size, place) in row {
            let long = if thick > 0.0 { size * scale / thick } else { 0.0 };
            if let Some(area) = areas.get_mut(*place) {
                *area = if rest.width >= rest.height {
                    Area { x: rest.x, y: rest.y + along, width: thick, height: long }
                } else {
                    Area { x: rest.x + along, y: rest.y, width: long, height: thick }
                };
            }
            along += long;
        }
        if rest.width >= rest.height {
            rest.x += thick;
            rest.width = (rest.width - thick).max(0.0);
        } else {
            rest.y += thick;
            rest.height = (rest.height - thick).max(0.0);
        }
        left = later;
    }
    areas
}

#[cfg(test)]
mod tests {
    use super::{Area, squarified};

    #[test]
    fn areas_are_in_proportion_and_do_not_overlap() {
        let within = Area { x: 10.0, y: 5.0, width: 300.0, height: 200.0 };
        let sizes: Vec<f64> = (0..40).map(|place| f64::from(place * place % 17 * 10)).collect();
        let sum: f64 = sizes.iter().sum();
        let areas = squarified(&sizes, within);
        for (size, area) in sizes.iter().zip(&areas) {
            assert!((area.width * area.height - size / sum * 60_000.0).abs() < 1e-6);
            assert!(area.x >= 10.0 - 1e-9 && area.x + area.width <= 310.0 + 1e-6, "{area:?}");
            assert!(area.y >= 5.0 - 1e-9 && area.y + area.height <= 205.0 + 1e-6, "{area:?}");
        }
        for (place, one) in areas.iter().enumerate() {
            for other in &areas[..place] {
                let wide = (one.x + one.width).min(other.x + other.width) - one.x.max(other.x);
                let high = (one.y + one.height).min(other.y + other.height) - one.y.max(other.y);
                assert!(wide < 1e-6 || high < 1e-6, "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn no_sizes_and_empty_areas_are_taken() {
        assert!(squarified(&[], Area::default()).is_empty());
        let areas = squarified(&[0.0, -1.0], Area { x: 1.0, y: 2.0, width: 3.0, height: 4.0 });
        assert!(areas.iter().all(|area| area.width == 0.0 && area.height == 0.0));
        assert!(squarified(&[1.0, 2.0], Area::default()).iter().all(|area| area.width.is_finite()));
    }
}
