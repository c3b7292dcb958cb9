#ifndef K3_TESTS_SUPPORT_DOCTEST_HPP
#define K3_TESTS_SUPPORT_DOCTEST_HPP
// doctest lives one folder deeper in Debian than in upstream's own dependency.
#if __has_include(<doctest/doctest.h>)
#include <doctest/doctest.h>
#else
#include <doctest.h>
#endif
#endif
