//! Records of embedding batches: parsed, and written again from their parts.

use tierfs::format::files::cgeb::{ContentHash, HEADER_BYTES, Header, NewRecord, RECORD_ALIGNMENT, Record};

pub fn check(bytes: &[u8]) {
    let Ok(header) = Header::parse(bytes) else {
        assert!(Record::borrow(bytes).is_err());
        return;
    };
    assert_eq!(Some(header.write().as_slice()), bytes.get(..HEADER_BYTES));
    let ranges = [header.vector_range(), header.weights_range(), header.selected_range(), header.aux_range()];
    let mut at = HEADER_BYTES as u64;
    for range in ranges {
        assert!(at <= range.start && range.start <= range.end, "{header:?}");
        at = range.end;
    }
    assert_eq!(header.record_bytes(), at);
    assert!(header.stride().is_none_or(|stride| stride >= at && stride % RECORD_ALIGNMENT == 0));

    let Ok(record) = Record::borrow(bytes) else {
        assert!(at > bytes.len() as u64, "a record that is there is refused: {header:?}");
        return;
    };
    assert!(at <= bytes.len() as u64);
    assert_eq!(
        (record.vector.len(), record.weights.len()),
        (header.dimension as usize, usize::from(header.experts))
    );
    let own_hash = match header.content_hash {
        ContentHash::Own(hash) => Some(hash),
        ContentHash::OfPayload(_) => None,
    };
    let (vector, weights): (Vec<f32>, Vec<f32>) =
        (record.vector.iter().collect(), record.weights.iter().collect());
    let new = NewRecord {
        layout: header.layout,
        vector: &vector,
        weights: &weights,
        selected: record.selected,
        aux: record.aux,
        aux_encoding: header.aux_encoding,
        pipeline_latency_us: header.pipeline_latency_us,
        own_hash,
    };
    let written = new.write().unwrap_or_else(|error| panic!("{error}: {header:?}"));
    let again = Record::borrow(&written).unwrap_or_else(|error| panic!("{error}: {header:?}"));
    again.verify().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again.payload_hash(), record.payload_hash());
    assert_eq!((again.vector.as_bytes(), again.aux), (record.vector.as_bytes(), record.aux));
    let is_packed = header.aux_offset == header.selected_range().end || header.aux_offset == 0;
    if record.verify().is_ok() && is_packed && !record.aux.is_empty() {
        assert_eq!(Some(written.as_slice()), bytes.get(..written.len()));
    }
}
