package restore

import (
	"context"
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/protobuf/encoding/protowire"

	"etcd-wrapper/backup/format/segment"
)

// The time in seconds that a lease gets which a key names, and of which nobody has stated how long it is.
const (
	// endedTTL is for one that had come to its end by the next statement: its keys went a moment later, and do so again. etcd makes
	// as much of it as it allows at the least.
	endedTTL = 1
	// unknownTTL is for one of which nothing further is stated: somebody may still hold it, and must not lose it earlier than
	// agreed. So it gets as much as the longest that is known, and at least what etcd's own sessions have.
	unknownTTL = 60
)

// keepLeases adds the leases that keys name and that are not there. Without its lease a key would stay for ever. Buckets are stated
// less often than rows: a lease may have come since the last statement, and may have gone by the next one. Only rows behind those of
// the full can name such a lease.
func keepLeases(ctx context.Context, tx *bolt.Tx, changed Changes) error {
	leases, err := tx.CreateBucketIfNotExists(schema.Lease.Name())
	if err != nil {
		return err
	}
	missing := missingLeases(tx, leases, changed.behind)
	if len(missing) == 0 {
		return nil
	}
	stated, ttl, err := statedNext(ctx, leases, changed)
	for id := range missing {
		value := stated[string(leaseKey(id))]
		if value == nil && err == nil {
			value, err = (&leasepb.Lease{ID: id, TTL: ttl}).Marshal()
		}
		if err != nil {
			return fmt.Errorf("cannot add the lease %x, which a key names: %w", id, err)
		}
		if err = leases.Put(leaseKey(id), value); err != nil {
			return err
		}
	}
	return err
}

// statedNext are the leases as they were stated next, and the time of those that are not among them.
func statedNext(ctx context.Context, leases *bolt.Bucket, changed Changes) (stated map[string][]byte, ttl int64, err error) {
	var next *segment.Bucket
	if changed.Recorded != nil {
		next, err = changed.Recorded(ctx)
	}
	if next == nil {
		return nil, longest(leases), err
	}
	stated = map[string][]byte{}
	for key, value := range next.Entries() {
		stated[string(key)] = value
	}
	return stated, endedTTL, err
}

// missingLeases are those that keys name which were last written behind a row.
func missingLeases(tx *bolt.Tx, leases *bolt.Bucket, behind []byte) map[int64]bool {
	named := map[string]int64{} // by key
	rows := tx.Bucket(schema.Key.Name()).Cursor()
	for at, value := rows.Seek(behind); at != nil; at, value = rows.Next() {
		key, lease := keyAndLease(value)
		if (segment.Row{Key: at}).Tombstone() || lease == 0 || leases.Get(leaseKey(lease)) != nil {
			delete(named, string(key))
		} else {
			named[string(key)] = lease
		}
	}
	missing := map[int64]bool{}
	for _, id := range named {
		missing[id] = true
	}
	return missing
}

// The numbers of fields of etcd's mvccpb.KeyValue.
const (
	keyField   = 1
	leaseField = 6
)

// keyAndLease reads two fields of a row's value where it lies: to copy all of it would take as long as to insert it. What cannot be read
// names no lease; whoever proves what was built says so.
func keyAndLease(value []byte) (key []byte, lease int64) {
	for len(value) > 0 {
		number, kind, tag := protowire.ConsumeTag(value)
		length := protowire.ConsumeFieldValue(number, kind, value[max(tag, 0):])
		if tag < 0 || length < 0 {
			return nil, 0
		}
		switch field := value[tag : tag+length]; {
		case number == keyField && kind == protowire.BytesType:
			key, _ = protowire.ConsumeBytes(field)
		case number == leaseField && kind == protowire.VarintType:
			id, _ := protowire.ConsumeVarint(field)
			lease = int64(id) //nolint:gosec // as protobuf has it
		}
		value = value[tag+length:]
	}
	return key, lease
}

// longest is the time of the longest lease, and at least that of etcd's sessions.
func longest(leases *bolt.Bucket) int64 {
	ttl := int64(unknownTTL)
	_ = leases.ForEach(func(_, value []byte) error { // it fails only if this does
		var known leasepb.Lease
		if known.Unmarshal(value) == nil {
			ttl = max(ttl, known.TTL)
		}
		return nil
	})
	return ttl
}

// leaseKey is what etcd has a lease under.
func leaseKey(id int64) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(id)) //nolint:gosec // as etcd does
}
