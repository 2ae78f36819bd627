package store

import (
	"fmt"
	"iter"
	"strings"
)

// InOrder turns the listing of a server into that of a Store: it removes base from names, skips other names and those up to
// after, and fails if the listing is out of order, since a reader would miss objects. Stores call it.
func InOrder(listed iter.Seq2[Object, error], base, after string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		last := ""
		for object, err := range listed {
			if err != nil {
				yield(Object{}, err)
				return
			}
			name, ours := strings.CutPrefix(object.Name, base)
			if !ours || CheckName(name) != nil || name <= after {
				continue
			}
			if name <= last {
				yield(Object{}, fmt.Errorf("the store lists %s after %s: it cannot be used, objects would be missed", name, last))
				return
			}
			object.Name, last = name, name
			if !yield(object, nil) {
				return
			}
		}
	}
}

// Failed returns a listing that yields only an error.
func Failed(err error) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) { yield(Object{}, err) }
}
