package store

import (
	"fmt"
	"iter"
	"strings"
)

// InOrder makes what a server lists into what List promises: base is taken from the names, foreign names and those up to
// after are left out, and a listing that is out of order is an error, since a reader would miss objects.
// It is for the stores.
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

// Failed is a listing that yields nothing but an error.
func Failed(err error) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) { yield(Object{}, err) }
}
